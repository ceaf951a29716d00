#pragma once
/// 16-bit tiles for memory_efficient and flash1: tensor core products with float32 sums. thread_tiles.cuh has
/// the same interface for float32 and float64.
#include <cfloat>

#include <gradtile/attention/cuda/common/shared_tile.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/attention/cuda/literature/problem.cuh>

namespace gradtile::attention::cuda::tiled {

/// A tile's address in shared memory.
struct TensorAddresses {
    using Address = std::uint32_t;
    __device__ __forceinline__ static Address at(unsigned char* shared, int offset) {
        return shared_address(shared) + static_cast<std::uint32_t>(offset);
    }
};

/// Starts to copy a tile with the threads in one warp.
template <class Tile, class T>
__device__ __forceinline__ void load_by_warp_async(std::uint32_t tile, const RowsInMemory<const T>& from) {
    constexpr int pieces = Tile::rows * Tile::row_chunks;
    static_assert(pieces % 32 == 0);
#pragma unroll
    for (int i = 0; i < pieces / 32; ++i) {
        const int piece = lane_index() + i * 32, row = piece / Tile::row_chunks,
                  chunk = piece % Tile::row_chunks;
        copy_16_bytes_async(tile + Tile::offset(row, chunk), from.first + row * from.stride + chunk * 8,
                            row < from.rows && chunk * 8 < from.columns);
    }
}

/// Forward tiles. A warp computes `warp_rows` rows alone; all warps read the same keys.
template <class T_, int head_dim_, bool has_rule_, int warps_>
struct TensorForwardTiles : TensorAddresses {
    using T = T_;
    using A = float;
    static constexpr int head_dim = head_dim_;
    static constexpr bool has_rule = has_rule_;
    /// 16-row tiles per warp. With two tiles, each loaded K or V fragment is used in two products; rules and
    /// wide heads leave no registers for a second tile.
    static constexpr int row_tiles = head_dim <= (has_rule ? 32 : 64) ? 2 : 1;
    static constexpr int warps = warps_, threads = 32 * warps, warp_rows = 16 * row_tiles;
    static constexpr int keys = head_dim <= 128 ? 64 : 32;  ///< keys per K or V tile
    using QueryTile = Tile<warp_rows, head_dim>;
    using KeyTile = Tile<keys, head_dim>;
    // Bytes for a warp's Q rows, for a K or V tile, and for a warp's scratch memory.
    static constexpr int query_bytes = QueryTile::bytes, key_bytes = KeyTile::bytes, scratch_bytes = 0;

    __device__ __forceinline__ static void load_queries(std::uint32_t to, const RowsInMemory<const T>& from) {
        load_by_warp_async<QueryTile>(to, from);
    }
    __device__ __forceinline__ static void load_keys(std::uint32_t to, const RowsInMemory<const T>& from) {
        load_tile_async<KeyTile, threads>(to, from.first, from.stride, from.rows, from.columns);
    }

    /// O and the softmax state for a warp's rows, in registers.
    class Rows {
      public:
        /// The state before the first key. A sink counts as a key whose value is 0.
        __device__ __forceinline__ void start(float sink) {
            clear(o_);
            const float l = sink > -INFINITY && lane_index() % 4 == 0 ? 1.0f : 0.0f;
#pragma unroll
            for (int i = 0; i < lane_rows; ++i) softmax_.set(i, has_rule ? sink : sink * log2_e, l);
        }

        /// Adds a tile's keys. `key` is the tile's first key, and `row` is the warp's first row.
        __device__ __forceinline__ void add_keys(std::uint32_t q, std::uint32_t k, std::uint32_t v,
                                                 std::uint32_t, const Scoring<float>& scoring, int row,
                                                 int key) {
            const DeviceMask& mask = scoring.mask;
            if (!mask.sees_any(row, warp_rows, key, keys)) return;
            FragmentC s[row_tiles][keys / 8];
            clear(s);
            multiply_a_bt<T, head_dim, 4>(s, LanePointer<QueryTile>::stacked(q),
                                          LanePointer<KeyTile>::paired(k));
            if constexpr (has_rule) {
                scale(s, scoring.scale);
                apply_rule<T>(s, *scoring.rule, row, key, mask.queries, mask.keys);
            } else {
                scale(s, scoring.scale * log2_e);
            }
            if (!mask.sees_all(row, warp_rows, key, keys)) mask_scores(s, mask, row, key);
            float factor[lane_rows];
            softmax_.update(s, factor);
            scale_rows(o_, factor);
            if constexpr (has_rule) drop(s, *scoring.rule, row, key);
            FragmentA probabilities[keys / 16][row_tiles];
            as_operand_a<T>(probabilities, s);
            multiply_a_b<T>(o_, probabilities, LanePointer<KeyTile>::stacked(v));
        }

        /// Writes m (in the softmax's units) and l for the rows that exist.
        __device__ __forceinline__ void store_statistics(float* m, float* l, int rows) const {
            for_each_row([&](int i, int row) {
                const float sum = softmax_.sum(i);
                if (row >= rows || lane_index() % 4 != 0) return;
                m[row] = softmax_.maximum(i);
                l[row] = sum;
            });
        }
        __device__ __forceinline__ void load_statistics(const float* m, const float* l, int rows) {
            for_each_row([&](int i, int row) {
                const bool exists = row < rows;
                softmax_.set(i, exists ? m[row] : -INFINITY, exists && lane_index() % 4 == 0 ? l[row] : 0.0f);
            });
        }
        /// Writes m in base e, for Saved::row_max.
        __device__ __forceinline__ void store_max_in_base_e(float* m, int rows) const {
            for_each_row([&](int i, int row) {
                if (row < rows && lane_index() % 4 == 0)
                    m[row] = softmax_.maximum(i) * (has_rule ? 1.0f : ln_2);
            });
        }

        /// store_output() writes factor O / l, which is 0 for rows that see no key. load_output() computes O
        /// from O / l.
        template <class Out>
        __device__ __forceinline__ void store_output(const RowsInMemory<Out>& to, float factor) const {
            for_each_row([&](int i, int row) {
                const float sum = softmax_.sum(i), inverse = sum == 0 ? 0.0f : factor / sum;
                if (row >= to.rows) return;
                Out* const row_ptr = to.first + row * to.stride;
#pragma unroll
                for (int n = 0; n < head_dim / 8; ++n) {
                    const int column = n * 8 + lane_index() % 4 * 2;
                    if (column >= to.columns) break;
                    const float* const pair = &o_[i / 2][n][i % 2 * 2];
                    if constexpr (sizeof(Out) == 4) {
                        put_pair<Write::store>(row_ptr + column, pair[0] * inverse, pair[1] * inverse);
                    } else {
                        *reinterpret_cast<std::uint32_t*>(row_ptr + column) =
                            pack<T>(pair[0] * inverse, pair[1] * inverse);
                    }
                }
            });
        }
        __device__ __forceinline__ void load_output(const RowsInMemory<float>& from) {
            for_each_row([&](int i, int row) {
                const float sum = softmax_.sum(i);
                const float* const row_ptr = from.first + row * from.stride;
#pragma unroll
                for (int n = 0; n < head_dim / 8; ++n) {
                    const int column = n * 8 + lane_index() % 4 * 2;
                    float* const pair = &o_[i / 2][n][i % 2 * 2];
                    const bool exists = row < from.rows && column < from.columns;
                    const float2 two = exists ? *reinterpret_cast<const float2*>(row_ptr + column) : float2{};
                    pair[0] = two.x * sum;
                    pair[1] = two.y * sum;
                }
            });
        }

        /// Writes each row's LSE and, unless `remainder` is null, its remainder.
        __device__ __forceinline__ void store_lse(float* lse, float* remainder, int rows) const {
            for_each_row([&](int i, int row) {
                const float sum = softmax_.sum(i);
                if (row >= rows || lane_index() % 4 != 0) return;
                const ExactLse row_lse = softmax_.lse(i, sum);
                lse[row] = row_lse.lse;
                if (remainder != nullptr) remainder[row] = row_lse.remainder;
            });
        }

      private:
        static constexpr int lane_rows = 2 * row_tiles;
        /// Calls f(i, row) for every row in this lane, even for rows that do not exist, because f may
        /// exchange numbers between lanes.
        template <class F>
        __device__ __forceinline__ static void for_each_row(F&& f) {
#pragma unroll
            for (int i = 0; i < lane_rows; ++i) f(i, i / 2 * 16 + i % 2 * 8 + lane_index() / 4);
        }
        FragmentC o_[row_tiles][head_dim / 8];
        OnlineSoftmax<row_tiles, has_rule> softmax_;
    };
};

/// Backward tile sizes. Warps are arranged in two ways: along `row_warps` 16-row strips for S, dP and dQ, and
/// along 16-key strips for dK and dV. Warps that share a strip divide the S keys and the gradient columns.
struct TensorBackwardSizes {
    int warps, row_warps, keys, stages;

    constexpr int rows() const { return 16 * row_warps; }
    constexpr int key_warps() const { return keys / 16; }
    constexpr bool operator==(const TensorBackwardSizes&) const = default;
};

/// c += a b for a [.., depth] and b [depth, 8 n_tiles], both in shared memory, from a's row `row` and b's
/// column `column` on.
template <class T, int depth, int unrolled, class TileA, class TileB, int n_tiles>
__device__ __forceinline__ void multiply_shared_a_b(FragmentC (&c)[1][n_tiles], LanePointer<TileA> a, int row,
                                                    LanePointer<TileB> b, int column) {
#pragma unroll unrolled
    for (int k = 0; k < depth; k += 16) {
        FragmentA fragment;
        load_matrices<false>(fragment, a.at(row, k));
#pragma unroll
        for (int n = 0; n < n_tiles; n += 2) {
            std::uint32_t pair[4];
            load_matrices<true>(pair, b.at(k, column + n * 8));
            mma<T>(c[0][n], fragment, pair[0], pair[1]);
            mma<T>(c[0][n + 1], fragment, pair[2], pair[3]);
        }
    }
}

/// Backward tiles. Policy::sizes is a TensorBackwardSizes.
template <class T_, int head_dim_, bool has_rule_, class Policy>
struct TensorBackwardTiles : TensorAddresses {
    using T = T_;
    using A = float;
    static constexpr TensorBackwardSizes sizes = Policy::sizes;
    static constexpr int head_dim = head_dim_, warps = sizes.warps, threads = 32 * warps;
    static constexpr int rows = sizes.rows(), keys = sizes.keys, stages = sizes.stages;
    static constexpr bool has_rule = has_rule_;
    using RowTile = Tile<rows, head_dim>;
    using KeyTile = Tile<keys, head_dim>;
    using PairTile = Tile<rows, keys>;
    static constexpr int row_bytes = RowTile::bytes, key_bytes = KeyTile::bytes, pair_bytes = PairTile::bytes;
    static_assert(warps % sizes.row_warps == 0 && warps % sizes.key_warps() == 0);

    __device__ __forceinline__ static void load_rows(std::uint32_t to, const RowsInMemory<const T>& from) {
        load_tile_async<RowTile, threads>(to, from.first, from.stride, from.rows, from.columns);
    }
    __device__ __forceinline__ static void load_keys(std::uint32_t to, const RowsInMemory<const T>& from) {
        load_tile_async<KeyTile, threads>(to, from.first, from.stride, from.rows, from.columns);
    }

    /// The row statistics from which a lane computes P and dS. Rows that do not exist get P = 0.
    class Statistics {
      public:
        /// The pointers belong to the tile's first row; if `sums` is null, every sum is 1.
        __device__ __forceinline__ void load(const float* references, const float* sums, const float* deltas,
                                             int existing_rows) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = warp_index() % sizes.row_warps * 16 + i * 8 + lane_index() / 4;
                const bool exists = row < existing_rows;
                const float m = exists ? references[row] : INFINITY;
                const float unit = has_rule ? 1.0f : log2_e;
                reference[i] = m == -INFINITY ? 0.0f : fmaxf(m * unit, -FLT_MAX);
                const float sum = exists && sums != nullptr ? sums[row] : 1.0f;
                inverse_sum[i] = sum == 0 ? 0.0f : 1 / sum;
                delta[i] = exists ? deltas[row] : 0.0f;
            }
        }
        float reference[2], inverse_sum[2], delta[2];
    };

    /// Computes P without dropped elements, and dS, for all pairs in the tile and writes both to shared
    /// memory. (row, key) is the tile's first pair.
    __device__ __forceinline__ static void compute_pairs(const StepTiles<Address>& tiles,
                                                         const Statistics& statistics,
                                                         const Scoring<float>& scoring, float dropout_scale,
                                                         int row, int key) {
        constexpr int warp_keys = keys * sizes.row_warps / warps, n_tiles = warp_keys / 8;
        const DeviceMask& mask = scoring.mask;
        const int warp_row = warp_index() % sizes.row_warps * 16,
                  warp_key = warp_index() / sizes.row_warps * warp_keys;
        row += warp_row;
        key += warp_key;
        FragmentC s[1][n_tiles], x[1][n_tiles];  // S, then P; dP, then dS
        clear(s);
        clear(x);
        if (mask.sees_any(row, 16, key, warp_keys)) {
            multiply_a_bt<T, head_dim, 4>(
                s, LanePointer<RowTile>::stacked(tiles.q + warp_row * RowTile::row_bytes),
                LanePointer<KeyTile>::paired(tiles.k + warp_key * KeyTile::row_bytes));
            multiply_a_bt<T, head_dim, 4>(
                x, LanePointer<RowTile>::stacked(tiles.d_o + warp_row * RowTile::row_bytes),
                LanePointer<KeyTile>::paired(tiles.v + warp_key * KeyTile::row_bytes));
            const auto differentiate = [&](float& element, int n, int e, float derivative) {
                const int i = e / 2;
                float& probability = s[0][n][e];
                const float unit = has_rule ? log2_e : 1.0f;
                probability =
                    power_of_two((probability - statistics.reference[i]) * unit) * statistics.inverse_sum[i];
                element = probability * derivative * fmaf(element, dropout_scale, -statistics.delta[i]);
            };
            const bool sees_all = mask.sees_all(row, 16, key, warp_keys);
            if constexpr (has_rule) {
                const ScoreRule<float>& rule = *scoring.rule;
                FragmentC derivatives[1][n_tiles];
                scale(s, scoring.scale);
                differentiate_products(s, derivatives, rule);
                add_terms<T, RowsAre::queries>(s, rule, row, key, mask.queries, mask.keys);
                if (!sees_all) mask_scores(s, mask, row, key);
                drop(x, rule, row, key);
                for_each_element(x, [&](float& element, int, int n, int e) {
                    differentiate(element, n, e, derivatives[0][n][e]);
                });
                drop(s, rule, row, key);
            } else {
                scale(s, scoring.scale * log2_e);
                if (!sees_all) mask_scores(s, mask, row, key);
                for_each_element(x,
                                 [&](float& element, int, int n, int e) { differentiate(element, n, e, 1); });
            }
        }
        const auto to_p = LanePointer<PairTile>::stacked(tiles.p),
                   to_d_s = LanePointer<PairTile>::stacked(tiles.d_s);
#pragma unroll
        for (int n = 0; n < n_tiles; n += 2) {
            FragmentA packed;
            pack_fragment<T>(packed, s[0][n], s[0][n + 1]);
            store_matrices(packed, to_p.at(warp_row, warp_key + n * 8));
            pack_fragment<T>(packed, x[0][n], x[0][n + 1]);
            store_matrices(packed, to_d_s.at(warp_row, warp_key + n * 8));
        }
    }

    /// A warp's gradient sums: `columns` columns for 16 rows or 16 keys.
    template <int strips>
    class Sums {
      public:
        static constexpr int columns = head_dim * strips / warps;
        FragmentC x[1][columns / 8];

        __device__ __forceinline__ Sums() { clear(x); }
        __device__ __forceinline__ static int strip() { return warp_index() % strips * 16; }
        __device__ __forceinline__ static int first_column() { return warp_index() / strips * columns; }

        /// Writes factor * the sums to the rows or keys that exist.
        template <Write write>
        __device__ __forceinline__ void put(const RowsInMemory<float>& to, float factor) const {
            // All lanes must call warp_index().
            const int first_row = strip() + lane_index() / 4, column = first_column() + lane_index() % 4 * 2;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = first_row + i * 8;
                if (row >= to.rows) continue;
                float* const row_ptr = to.first + row * to.stride + column;
#pragma unroll
                for (int n = 0; n < columns / 8; ++n)
                    if (column + n * 8 < to.columns)
                        put_pair<write>(row_ptr + n * 8, x[0][n][2 * i] * factor,
                                        x[0][n][2 * i + 1] * factor);
            }
        }
    };
    struct RowSums : Sums<sizes.row_warps> {
        /// x += pairs y for y [keys, ..]
        __device__ __forceinline__ void add(std::uint32_t pairs, std::uint32_t y) {
            multiply_shared_a_b<T, keys, 4>(this->x, LanePointer<PairTile>::stacked(pairs), this->strip(),
                                            LanePointer<KeyTile>::stacked(y), this->first_column());
        }
    };
    struct KeySums : Sums<sizes.key_warps()> {
        /// x += pairs^T y for y [rows, ..]
        __device__ __forceinline__ void add(std::uint32_t pairs, std::uint32_t y) {
            multiply_at_b<T, rows, 4>(this->x, LanePointer<PairTile>::paired(pairs), this->strip(),
                                      LanePointer<RowTile>::stacked(y), this->first_column());
        }
    };
};

}  // namespace gradtile::attention::cuda::tiled
