#pragma once
/// float32 or float64 tiles for memory_efficient and flash1, without tensor cores. Each thread computes
/// `micro` x `micro` scores in registers, so that it uses each number from shared memory in several products.
/// tensor_tiles.cuh has the same interface for 16-bit numbers.
///
/// Long sums add partial sums, each over one tile or 32 columns, which loses fewer digits.
#include <cmath>

#include <gradtile/attention/cuda/literature/problem.cuh>
#include <gradtile/core/cuda/device/packed.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>

namespace gradtile::attention::cuda::tiled {

/// Tile sizes. A half-warp (16 lanes) shares `micro` neighbouring rows. Its lane y takes every 16th key from
/// key y on. In results, lane y takes groups with `group` neighbouring columns each; its groups are 16 groups
/// apart.
template <class A_, int head_dim_, bool has_rule_, int micro_>
struct ThreadTiles {
    using T = A_;
    using A = A_;
    using Address = A*;
    static constexpr int head_dim = head_dim_, micro = micro_;
    static constexpr bool has_rule = has_rule_;
    static constexpr int warps = 8, threads = 32 * warps, warp_rows = 2 * micro;
    static constexpr int rows = warps * warp_rows, keys = 16 * micro;
    static_assert(rows == keys);
    /// Numbers per shared-memory load. Tile rows are also padded by this many numbers, so that threads that
    /// read neighbouring rows use different banks.
    static constexpr int vector = 16 / int{sizeof(A)};
    static constexpr int row_length = head_dim + vector, pair_length = keys + vector;
    static constexpr int lane_columns = head_dim / 16;  ///< result columns per lane
    static constexpr int group = lane_columns < vector ? lane_columns : vector;

    __device__ __forceinline__ static Address at(unsigned char* shared, int offset) {
        return reinterpret_cast<A*>(shared + offset);
    }
    __device__ __forceinline__ static int half_warp() { return lane_index() / 16; }
    __device__ __forceinline__ static int half_lane() { return lane_index() % 16; }
    /// The index of a lane's first row among its warp's rows, and the lane's n-th column.
    __device__ __forceinline__ static int first_row() { return half_warp() * micro; }
    __device__ __forceinline__ static int column_of(int n) {
        return n / group * 16 * group + half_lane() * group + n % group;
    }
    template <int n>
    __device__ __forceinline__ static void load_vector(A (&x)[n], const A* from) {
        using gradtile::cuda::device::Packed;
        const auto packed = *reinterpret_cast<const Packed<A, n>*>(from);
#pragma unroll
        for (int i = 0; i < n; ++i) x[i] = packed[i];
    }
    /// Reduce over a half-warp's lanes.
    __device__ __forceinline__ static A row_max(A x) {
        return reduce_lanes<16>(x, [](A a, A b) { return max(a, b); });
    }
    __device__ __forceinline__ static A row_sum(A x) {
        return reduce_lanes<16>(x, Sum{});
    }

    /// Copies a tile with `tile_rows` rows. `step` threads share the copy, and `thread` is this thread's
    /// index among them. Rows and columns that do not exist become 0.
    template <int tile_rows, int step>
    __device__ __forceinline__ static void load(Address to, const RowsInMemory<const A>& from, int thread) {
#pragma unroll 4
        for (int i = thread; i < tile_rows * head_dim; i += step) {
            const int row = i / head_dim, column = i % head_dim;
            const bool exists = row < from.rows && column < from.columns;
            to[row * row_length + column] = exists ? from.first[row * from.stride + column] : A(0);
        }
    }
    __device__ __forceinline__ static void load_keys(Address to, const RowsInMemory<const A>& from) {
        load<keys, threads>(to, from, static_cast<int>(threadIdx.x));
    }

    /// c = x y^T for a lane's rows in x, which are adjacent, and its keys in y, which are 16 rows apart.
    __device__ __forceinline__ static void multiply_transposed(A (&c)[micro][micro], const A* x, const A* y) {
        constexpr int depth = 32;  // columns per partial sum
#pragma unroll
        for (int a = 0; a < micro; ++a)
#pragma unroll
            for (int b = 0; b < micro; ++b) c[a][b] = 0;
#pragma unroll 1
        for (int first = 0; first < head_dim; first += depth) {
            A part[micro][micro] = {};
#pragma unroll 2
            for (int column = first; column < first + depth; column += vector) {
                A left[micro][vector], right[micro][vector];
#pragma unroll
                for (int a = 0; a < micro; ++a) load_vector(left[a], x + a * row_length + column);
#pragma unroll
                for (int b = 0; b < micro; ++b) load_vector(right[b], y + b * 16 * row_length + column);
#pragma unroll
                for (int e = 0; e < vector; ++e)
#pragma unroll
                    for (int a = 0; a < micro; ++a)
#pragma unroll
                        for (int b = 0; b < micro; ++b) part[a][b] = fma(left[a][e], right[b][e], part[a][b]);
            }
#pragma unroll
            for (int a = 0; a < micro; ++a)
#pragma unroll
                for (int b = 0; b < micro; ++b) c[a][b] += part[a][b];
        }
    }

    /// How a product reads a pair tile as its left factor: the factor's rows are the tile's rows or the
    /// tile's keys.
    enum class Factor : std::uint8_t { by_rows, by_keys };

    /// sums = scale * sums + factor * right for a lane's rows and columns. `pairs` points into the factor's
    /// tile, at the lane's first row and right's first row.
    template <Factor factor>
    __device__ __forceinline__ static void add_product(A (&sums)[micro][lane_columns],
                                                       const A (&scale)[micro], const A* pairs,
                                                       const A* right) {
#pragma unroll
        for (int column = 0; column < lane_columns; column += group) {
            A part[micro][group] = {};
#pragma unroll 2
            for (int j = 0; j < keys; j += vector) {
                A left[micro][vector];
                if constexpr (factor == Factor::by_rows) {
#pragma unroll
                    for (int a = 0; a < micro; ++a) load_vector(left[a], pairs + a * pair_length + j);
                } else {
#pragma unroll
                    for (int e = 0; e < vector; ++e) {
                        A row_values[micro];
                        load_vector(row_values, pairs + (j + e) * pair_length);
#pragma unroll
                        for (int a = 0; a < micro; ++a) left[a][e] = row_values[a];
                    }
                }
#pragma unroll
                for (int e = 0; e < vector; ++e) {
                    A y[group];
                    load_vector(y, right + (j + e) * row_length + column_of(column));
#pragma unroll
                    for (int a = 0; a < micro; ++a)
#pragma unroll
                        for (int n = 0; n < group; ++n) part[a][n] = fma(left[a][e], y[n], part[a][n]);
                }
            }
#pragma unroll
            for (int a = 0; a < micro; ++a)
#pragma unroll
                for (int n = 0; n < group; ++n)
                    sums[a][column + n] = fma(sums[a][column + n], scale[a], part[a][n]);
        }
    }

    /// Whether a row sees a key. The row may lie beyond the last one.
    __device__ __forceinline__ static bool sees(const DeviceMask& mask, int row, int key) {
        return row < mask.queries && key >= mask.first_key(row) && key < mask.end_key(row);
    }
    /// The score for an existing pair, and its derivative with respect to the product.
    __device__ __forceinline__ static Score<A> score(const Scoring<A>& scoring, A product, int row, int key) {
        if constexpr (has_rule) {
            return score_of<A>(*scoring.rule, scoring.scale * product, row, key);
        } else {
            return {scoring.scale * product, A(1)};
        }
    }
};

/// Forward tiles.
template <class A_, int head_dim_, bool has_rule_, int micro_>
struct ThreadForwardTiles : ThreadTiles<A_, head_dim_, has_rule_, micro_> {
    using Base = ThreadTiles<A_, head_dim_, has_rule_, micro_>;
    using Base::head_dim, Base::micro, Base::warp_rows, Base::keys, Base::row_length, Base::pair_length,
        Base::lane_columns, Base::has_rule;
    using typename Base::A;
    using typename Base::Address;
    static constexpr int query_bytes = warp_rows * row_length * int{sizeof(A)},
                         key_bytes = keys * row_length * int{sizeof(A)},
                         scratch_bytes = warp_rows * pair_length * int{sizeof(A)};  ///< a warp's P

    __device__ __forceinline__ static void load_queries(Address to, const RowsInMemory<const A>& from) {
        Base::template load<warp_rows, 32>(to, from, lane_index());
    }

    /// O and the softmax state for a warp's rows, in registers.
    class Rows {
      public:
        /// The state before the first key. A sink counts as a key whose value is 0.
        __device__ __forceinline__ void start(A sink) {
#pragma unroll
            for (int a = 0; a < micro; ++a) {
                max_[a] = sink;
                sum_[a] = sink > -static_cast<A>(HUGE_VAL) ? A(1) : A(0);
#pragma unroll
                for (A& o : o_[a]) o = 0;
            }
        }

        /// Adds a tile's keys. `key` is the tile's first key, and `row` is the warp's first row.
        __device__ __forceinline__ void add_keys(Address q, Address k, Address v, Address p,
                                                 const Scoring<A>& scoring, int row, int key) {
            if (!scoring.mask.sees_any(row, warp_rows, key, keys)) return;
            const int first = Base::first_row(), y = Base::half_lane();
            const A infinity = static_cast<A>(HUGE_VAL);
            A s[micro][micro], factor[micro];
            Base::multiply_transposed(s, q + first * row_length, k + y * row_length);
#pragma unroll
            for (int a = 0; a < micro; ++a) {
                const int i = row + first + a;
                A largest = max_[a];
#pragma unroll
                for (int b = 0; b < micro; ++b) {
                    const int j = key + y + 16 * b;
                    s[a][b] = Base::sees(scoring.mask, i, j) ? Base::score(scoring, s[a][b], i, j).value
                                                             : -infinity;
                    largest = max(largest, s[a][b]);
                }
                largest = Base::row_max(largest);
                const A reference = largest == -infinity ? A(0) : largest;  // no visible key yet
                factor[a] = exp(max_[a] - reference);
                max_[a] = largest;
                A lane_sum = 0;
#pragma unroll
                for (int b = 0; b < micro; ++b) {
                    A probability = exp(s[a][b] - reference);
                    lane_sum += probability;
                    if constexpr (has_rule) probability *= kept(*scoring.rule, i, key + y + 16 * b);
                    p[(first + a) * pair_length + y + 16 * b] = probability;
                }
                sum_[a] = fma(sum_[a], factor[a], Base::row_sum(lane_sum));
            }
            __syncwarp();
            Base::template add_product<Base::Factor::by_rows>(o_, factor, p + first * pair_length, v);
            __syncwarp();  // the half-warps have read P
        }

        /// Writes m and l for the rows that exist.
        __device__ __forceinline__ void store_statistics(A* m, A* l, int rows) const {
            for_each_row(rows, [&](int a, int row) {
                if (Base::half_lane() != 0) return;
                m[row] = max_[a];
                l[row] = sum_[a];
            });
        }
        __device__ __forceinline__ void load_statistics(const A* m, const A* l, int rows) {
            start(-static_cast<A>(HUGE_VAL));
            for_each_row(rows, [&](int a, int row) {
                max_[a] = m[row];
                sum_[a] = l[row];
            });
        }
        /// Does nothing, because store_statistics() already writes m in base e.
        __device__ __forceinline__ void store_max_in_base_e(A*, int) const {}

        /// store_output() writes factor O / l, which is 0 for rows that see no key. load_output() computes O
        /// from O / l.
        template <class Out>
        __device__ __forceinline__ void store_output(const RowsInMemory<Out>& to, A factor) const {
            for_each_row(to.rows, [&](int a, int row) {
                const A inverse = sum_[a] == 0 ? A(0) : factor / sum_[a];
#pragma unroll
                for (int n = 0; n < lane_columns; ++n)
                    if (const int column = Base::column_of(n); column < to.columns)
                        to.first[row * to.stride + column] = o_[a][n] * inverse;
            });
        }
        __device__ __forceinline__ void load_output(const RowsInMemory<A>& from) {
            for_each_row(from.rows, [&](int a, int row) {
#pragma unroll
                for (int n = 0; n < lane_columns; ++n) {
                    const int column = Base::column_of(n);
                    o_[a][n] =
                        column < from.columns ? from.first[row * from.stride + column] * sum_[a] : A(0);
                }
            });
        }

        /// Writes each row's LSE and, unless `remainder` is null, its remainder.
        __device__ __forceinline__ void store_lse(A* lse, A* remainder, int rows) const {
            for_each_row(rows, [&](int a, int row) {
                if (Base::half_lane() != 0) return;
                const bool sees_keys = sum_[a] != 0;
                const A log_sum = log(sum_[a]),
                        row_lse = sees_keys ? max_[a] + log_sum : -static_cast<A>(HUGE_VAL);
                lse[row] = row_lse;
                if (remainder != nullptr) remainder[row] = sees_keys ? max_[a] - row_lse + log_sum : A(0);
            });
        }

      private:
        /// Calls f(a, row) for each existing row in this lane.
        template <class F>
        __device__ __forceinline__ static void for_each_row(int rows, F&& f) {
#pragma unroll
            for (int a = 0; a < micro; ++a)
                if (const int row = Base::first_row() + a; row < rows) f(a, row);
        }
        A o_[micro][lane_columns], max_[micro], sum_[micro];
    };
};

/// Backward tiles. Each warp takes a row strip for S, dP and dQ, and a key strip for dK and dV.
template <class A_, int head_dim_, bool has_rule_, int micro_>
struct ThreadBackwardTiles : ThreadTiles<A_, head_dim_, has_rule_, micro_> {
    using Base = ThreadTiles<A_, head_dim_, has_rule_, micro_>;
    using Base::head_dim, Base::micro, Base::warp_rows, Base::rows, Base::keys, Base::row_length,
        Base::pair_length, Base::lane_columns, Base::has_rule;
    using typename Base::A;
    using typename Base::Address;
    static constexpr int stages = 1;
    static constexpr int row_bytes = rows * row_length * int{sizeof(A)}, key_bytes = row_bytes,
                         pair_bytes = rows * pair_length * int{sizeof(A)};

    __device__ __forceinline__ static void load_rows(Address to, const RowsInMemory<const A>& from) {
        Base::load_keys(to, from);
    }
    __device__ __forceinline__ static int first_of_lane() {
        return warp_index() * warp_rows + Base::first_row();
    }

    /// The row statistics from which a lane computes P and dS. Rows that do not exist get P = 0.
    class Statistics {
      public:
        /// The pointers belong to the tile's first row; if `sums` is null, every sum is 1.
        __device__ __forceinline__ void load(const A* references, const A* sums, const A* deltas,
                                             int existing_rows) {
            const int first = first_of_lane();
#pragma unroll
            for (int a = 0; a < micro; ++a) {
                const int row = first + a;
                const bool exists = row < existing_rows;
                const A m = exists ? references[row] : A(0),
                        sum = exists && sums != nullptr ? sums[row] : A(1);
                reference[a] = m == -static_cast<A>(HUGE_VAL) ? A(0) : m;
                inverse_sum[a] = sum == 0 || !exists ? A(0) : A(1) / sum;
                delta[a] = exists ? deltas[row] : A(0);
            }
        }
        A reference[micro], inverse_sum[micro], delta[micro];
    };

    /// Computes P without dropped elements, and dS, for all pairs in the tile and writes both to shared
    /// memory. (row, key) is the tile's first pair.
    __device__ __forceinline__ static void compute_pairs(const StepTiles<Address>& tiles,
                                                         const Statistics& statistics,
                                                         const Scoring<A>& scoring, A dropout_scale, int row,
                                                         int key) {
        const int first = first_of_lane(), y = Base::half_lane();
        A s[micro][micro], d_p[micro][micro];
        Base::multiply_transposed(s, tiles.q + first * row_length, tiles.k + y * row_length);
        Base::multiply_transposed(d_p, tiles.d_o + first * row_length, tiles.v + y * row_length);
#pragma unroll
        for (int a = 0; a < micro; ++a)
#pragma unroll
            for (int b = 0; b < micro; ++b) {
                const int i = row + first + a, j = key + y + 16 * b;
                A probability = 0, factor = dropout_scale, derivative = 0;
                if (Base::sees(scoring.mask, i, j)) {
                    const Score<A> score = Base::score(scoring, s[a][b], i, j);
                    probability = exp(score.value - statistics.reference[a]) * statistics.inverse_sum[a];
                    derivative = score.derivative;
                    if constexpr (has_rule) factor *= kept(*scoring.rule, i, j);
                }
                const int pair = (first + a) * pair_length + y + 16 * b;
                tiles.p[pair] = factor == 0 ? A(0) : probability;
                tiles.d_s[pair] = probability * fma(factor, d_p[a][b], -statistics.delta[a]) * derivative;
            }
    }

    /// A gradient for a warp's rows or keys.
    class Sums {
      public:
        A x[micro][lane_columns] = {};

        /// Writes factor * the sums to the rows or keys that exist.
        template <Write write>
        __device__ __forceinline__ void put(const RowsInMemory<A>& to, A factor) const {
            const int first = first_of_lane();
#pragma unroll
            for (int a = 0; a < micro; ++a) {
                const int row = first + a;
                if (row >= to.rows) continue;
#pragma unroll
                for (int n = 0; n < lane_columns; ++n)
                    if (const int column = Base::column_of(n); column < to.columns)
                        tiled::put<write>(to.first + row * to.stride + column, x[a][n] * factor);
            }
        }

      protected:
        template <typename Base::Factor factor>
        __device__ __forceinline__ void add(const A* pairs, const A* right) {
            A ones[micro];
#pragma unroll
            for (A& one : ones) one = 1;
            Base::template add_product<factor>(x, ones, pairs, right);
        }
    };
    struct RowSums : Sums {
        /// x += pairs y for y [keys, ..]
        __device__ __forceinline__ void add(const A* pairs, const A* y) {
            Sums::template add<Base::Factor::by_rows>(pairs + first_of_lane() * pair_length, y);
        }
    };
    struct KeySums : Sums {
        /// x += pairs^T y for y [rows, ..]
        __device__ __forceinline__ void add(const A* pairs, const A* y) {
            Sums::template add<Base::Factor::by_keys>(pairs + first_of_lane(), y);
        }
    };
};

}  // namespace gradtile::attention::cuda::tiled
