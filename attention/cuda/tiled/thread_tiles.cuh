#pragma once
/// Tiles of float32 or float64 numbers for memory_efficient and flash1, without tensor cores. Each thread
/// computes a square of `micro` x `micro` scores in registers, so that a number that it loads from shared
/// memory enters several products. tensor_tiles.cuh has the same interface for 16-bit numbers.
///
/// A sum of many terms is a sum of partial sums, each over one tile, which loses fewer digits.
#include <cmath>

#include <gradtile/attention/cuda/tiled/problem.cuh>

namespace gradtile::attention::cuda::tiled {

/// Sizes of the tiles. A half-warp of 16 lanes shares its rows. Lane y of it takes the keys y, y + 16, .. and
/// the columns y, y + 16, .. of a result; half-warp h of a warp takes the warp's rows h, h + 2, ..
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
    // Rows of tiles have odd lengths, so that threads that read a column use different banks.
    static constexpr int row_length = head_dim + 1, pair_length = keys + 1;
    static constexpr int lane_columns = head_dim / 16;  ///< of a lane's results

    __device__ __forceinline__ static Address at(unsigned char* shared, int offset) {
        return reinterpret_cast<A*>(shared + offset);
    }
    __device__ __forceinline__ static int half_warp() { return lane_index() / 16; }
    __device__ __forceinline__ static int half_lane() { return lane_index() % 16; }
    /// Reductions over the lanes of a half-warp.
    __device__ __forceinline__ static A row_max(A x) {
#pragma unroll
        for (int distance = 8; distance > 0; distance /= 2) x = max(x, __shfl_xor_sync(~0u, x, distance));
        return x;
    }
    __device__ __forceinline__ static A row_sum(A x) {
#pragma unroll
        for (int distance = 8; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
        return x;
    }

    /// Copies a tile of `tile_rows` rows with every `step`-th thread from number `thread` on. What does not
    /// exist becomes 0.
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

    /// c = x y^T for a lane's rows of x and keys of y, which are row_step and 16 rows apart.
    __device__ __forceinline__ static void multiply_transposed(A (&c)[micro][micro], const A* x, int row_step,
                                                               const A* y) {
        constexpr int depth = 32;  // columns of a partial sum
#pragma unroll
        for (int a = 0; a < micro; ++a)
#pragma unroll
            for (int b = 0; b < micro; ++b) c[a][b] = 0;
#pragma unroll 1
        for (int first = 0; first < head_dim; first += depth) {
            A part[micro][micro] = {};
#pragma unroll 8
            for (int column = first; column < first + depth; ++column) {
                A left[micro], right[micro];
#pragma unroll
                for (int a = 0; a < micro; ++a) left[a] = x[a * row_step * row_length + column];
#pragma unroll
                for (int b = 0; b < micro; ++b) right[b] = y[b * 16 * row_length + column];
#pragma unroll
                for (int a = 0; a < micro; ++a)
#pragma unroll
                    for (int b = 0; b < micro; ++b) part[a][b] = fma(left[a], right[b], part[a][b]);
            }
#pragma unroll
            for (int a = 0; a < micro; ++a)
#pragma unroll
                for (int b = 0; b < micro; ++b) c[a][b] += part[a][b];
        }
    }

    /// sums[a] = factor[a] * sums[a] + sum over j of left[2 a left_step + j depth_step] * right[j, ..], for a
    /// lane's rows a and columns.
    __device__ __forceinline__ static void add_product(A (&sums)[micro][lane_columns],
                                                       const A (&factor)[micro], const A* left, int left_step,
                                                       int depth_step, const A* right) {
        constexpr int group = lane_columns < 4 ? lane_columns : 4;  // columns at a time
#pragma unroll
        for (int column = 0; column < lane_columns; column += group) {
            A part[micro][group] = {};
#pragma unroll 4
            for (int j = 0; j < keys; ++j) {
                A x[micro], y[group];
#pragma unroll
                for (int a = 0; a < micro; ++a) x[a] = left[2 * a * left_step + j * depth_step];
#pragma unroll
                for (int n = 0; n < group; ++n)
                    y[n] = right[j * row_length + half_lane() + (column + n) * 16];
#pragma unroll
                for (int a = 0; a < micro; ++a)
#pragma unroll
                    for (int n = 0; n < group; ++n) part[a][n] = fma(x[a], y[n], part[a][n]);
            }
#pragma unroll
            for (int a = 0; a < micro; ++a)
#pragma unroll
                for (int n = 0; n < group; ++n)
                    sums[a][column + n] = fma(sums[a][column + n], factor[a], part[a][n]);
        }
    }

    /// Whether a row sees a key. The row may lie beyond the last one.
    __device__ __forceinline__ static bool sees(const DeviceMask& mask, int row, int key) {
        return row < mask.queries && key >= mask.first_key(row) && key < mask.end_key(row);
    }
    /// The score of a pair that exists, and its derivative by the product.
    __device__ __forceinline__ static Score<A> score(const Scoring<A>& scoring, A product, int row, int key) {
        if constexpr (has_rule) {
            return score_of<A>(*scoring.rule, scoring.scale * product, row, key);
        } else {
            return {scoring.scale * product, A(1)};
        }
    }
};

/// The tiles of a forward pass.
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

    /// O and the softmax of a warp's rows, in registers.
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

        /// Adds the keys of a tile, the first of which is number `key`; `row` is the warp's first row.
        __device__ __forceinline__ void add_keys(Address q, Address k, Address v, Address p,
                                                 const Scoring<A>& scoring, int row, int key) {
            if (!scoring.mask.sees_any(row, warp_rows, key, keys)) return;
            const int h = Base::half_warp(), y = Base::half_lane();
            const A infinity = static_cast<A>(HUGE_VAL);
            A s[micro][micro], factor[micro];
            Base::multiply_transposed(s, q + h * row_length, 2, k + y * row_length);
#pragma unroll
            for (int a = 0; a < micro; ++a) {
                const int i = row + h + 2 * a;
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
                A of_lane = 0;
#pragma unroll
                for (int b = 0; b < micro; ++b) {
                    A probability = exp(s[a][b] - reference);
                    of_lane += probability;
                    if constexpr (has_rule) probability *= kept(*scoring.rule, i, key + y + 16 * b);
                    p[(h + 2 * a) * pair_length + y + 16 * b] = probability;
                }
                sum_[a] = fma(sum_[a], factor[a], Base::row_sum(of_lane));
            }
            __syncwarp();
            Base::add_product(o_, factor, p + h * pair_length, pair_length, 1, v);
            __syncwarp();  // the half-warps have read P
        }

        /// Writes m and l of the rows that exist.
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
        /// Writes m for the caller, in base e: store_statistics() does so, too.
        __device__ __forceinline__ void store_natural_max(A*, int) const {}

        /// Writes factor O / l, which is 0 for rows that see no key, and reads O again.
        template <class Out>
        __device__ __forceinline__ void store_output(const RowsInMemory<Out>& to, A factor) const {
            for_each_row(to.rows, [&](int a, int row) {
                const A inverse = sum_[a] == 0 ? A(0) : factor / sum_[a];
#pragma unroll
                for (int n = 0; n < lane_columns; ++n)
                    if (const int column = Base::half_lane() + n * 16; column < to.columns)
                        to.first[row * to.stride + column] = o_[a][n] * inverse;
            });
        }
        __device__ __forceinline__ void load_output(const RowsInMemory<A>& from) {
            for_each_row(from.rows, [&](int a, int row) {
#pragma unroll
                for (int n = 0; n < lane_columns; ++n) {
                    const int column = Base::half_lane() + n * 16;
                    o_[a][n] =
                        column < from.columns ? from.first[row * from.stride + column] * sum_[a] : A(0);
                }
            });
        }

        /// Writes the LSE of the rows.
        __device__ __forceinline__ void store_lse(A* lse, int rows) const {
            for_each_row(rows, [&](int a, int row) {
                if (Base::half_lane() == 0)
                    lse[row] = sum_[a] == 0 ? -static_cast<A>(HUGE_VAL) : max_[a] + log(sum_[a]);
            });
        }

      private:
        /// Calls f(a, row) for every row of a lane that exists.
        template <class F>
        __device__ __forceinline__ static void for_each_row(int rows, F&& f) {
#pragma unroll
            for (int a = 0; a < micro; ++a)
                if (const int row = Base::half_warp() + 2 * a; row < rows) f(a, row);
        }
        A o_[micro][lane_columns], max_[micro], sum_[micro];
    };
};

/// The tiles of a backward pass. Each warp takes a strip of rows for S, dP and dQ, and a strip of keys for dK
/// and dV.
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
        return warp_index() * warp_rows + Base::half_warp();
    }

    /// What P and dS of a lane's rows need. Rows that do not exist have P = 0.
    class Statistics {
      public:
        /// The pointers belong to the tile's first row; `sums` is null for 1.
        __device__ __forceinline__ void load(const A* references, const A* sums, const A* deltas,
                                             int existing_rows) {
            const int first = first_of_lane();
#pragma unroll
            for (int a = 0; a < micro; ++a) {
                const int row = first + 2 * a;
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

    /// Computes P without dropped elements and dS of all pairs of the tile and writes them to shared memory.
    /// (row, key) is the tile's first pair.
    __device__ __forceinline__ static void compute_pairs(Address q, Address d_o, Address k, Address v,
                                                         Address p, Address d_s, const Statistics& statistics,
                                                         const Scoring<A>& scoring, A dropout_scale, int row,
                                                         int key) {
        const int first = first_of_lane(), y = Base::half_lane();
        A s[micro][micro], d_p[micro][micro];
        Base::multiply_transposed(s, q + first * row_length, 2, k + y * row_length);
        Base::multiply_transposed(d_p, d_o + first * row_length, 2, v + y * row_length);
#pragma unroll
        for (int a = 0; a < micro; ++a)
#pragma unroll
            for (int b = 0; b < micro; ++b) {
                const int i = row + first + 2 * a, j = key + y + 16 * b;
                A probability = 0, factor = dropout_scale, derivative = 0;
                if (Base::sees(scoring.mask, i, j)) {
                    const Score<A> score = Base::score(scoring, s[a][b], i, j);
                    probability = exp(score.value - statistics.reference[a]) * statistics.inverse_sum[a];
                    derivative = score.derivative;
                    if constexpr (has_rule) factor *= kept(*scoring.rule, i, j);
                }
                const int pair = (first + 2 * a) * pair_length + y + 16 * b;
                p[pair] = factor == 0 ? A(0) : probability;
                d_s[pair] = probability * fma(factor, d_p[a][b], -statistics.delta[a]) * derivative;
            }
    }

    /// A gradient of a warp's rows or keys.
    class Sums {
      public:
        A x[micro][lane_columns] = {};

        /// Writes factor * the sums to the rows or keys that exist.
        template <Write write>
        __device__ __forceinline__ void put(const RowsInMemory<A>& to, A factor) const {
            const int first = first_of_lane();
#pragma unroll
            for (int a = 0; a < micro; ++a) {
                const int row = first + 2 * a;
                if (row >= to.rows) continue;
#pragma unroll
                for (int n = 0; n < lane_columns; ++n)
                    if (const int column = Base::half_lane() + n * 16; column < to.columns)
                        tiled::put<write>(to.first + row * to.stride + column, x[a][n] * factor);
            }
        }

      protected:
        __device__ __forceinline__ void add(const A* left, int left_step, int depth_step, const A* right) {
            A ones[micro];
#pragma unroll
            for (A& one : ones) one = 1;
            Base::add_product(x, ones, left, left_step, depth_step, right);
        }
    };
    struct RowSums : Sums {
        /// += pairs y for y [keys, ..]
        __device__ __forceinline__ void add(const A* pairs, const A* y) {
            Sums::add(pairs + first_of_lane() * pair_length, pair_length, 1, y);
        }
    };
    struct KeySums : Sums {
        /// += pairs^T y for y [rows, ..]
        __device__ __forceinline__ void add(const A* pairs, const A* y) {
            Sums::add(pairs + first_of_lane(), 1, pair_length, y);
        }
    };
};

}  // namespace gradtile::attention::cuda::tiled
