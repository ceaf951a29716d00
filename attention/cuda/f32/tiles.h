#pragma once
/// INTERNAL. Tile sizes for the float32 GPU kernels. Measurements behind the choices:
/// bench/results/2026-11-21-h200-attention-f32.md.
#include <gradtile/attention/cuda/common/packed_shapes.h>
#include <gradtile/attention/cuda/common/shared_memory_limits.h>

namespace gradtile::attention::cuda {

using F32HeadDims = HeadDims<32, 64, 128, 256>;

struct F32ForwardTiles {
    int warps;
    int row_tiles;  ///< 16-row tiles per warp
    int keys;
    int blocks_per_sm;  ///< thread blocks per multiprocessor; limits the registers per thread

    constexpr int rows() const { return warps * row_tiles * 16; }
    constexpr int threads() const { return warps * 32; }
    /// Bytes for Q, K and V, each in two 16-bit planes (common/split_float.cuh).
    constexpr int shared_bytes(int head_dim) const { return 2 * 2 * head_dim * (rows() + 2 * keys); }
    constexpr bool operator==(const F32ForwardTiles&) const = default;
};

/// Tile sizes for head dims up to `head_dim`.
template <int head_dim>
struct F32ForwardChoice {
    static constexpr F32ForwardTiles tiles(int shared_limit) {
        // Two row tiles per warp halve the K/V loads from shared memory, which otherwise take as long as the
        // products. From 128 columns on, O leaves no registers for a second row tile.
        if (head_dim <= 64) return {.warps = 4, .row_tiles = 2, .keys = 32, .blocks_per_sm = 2};
        F32ForwardTiles tiles{
            .warps = 8, .row_tiles = 1, .keys = head_dim <= 128 ? 64 : 32, .blocks_per_sm = 1};
        if (tiles.shared_bytes(head_dim) > shared_limit) {
            tiles.warps = 4;
            tiles.keys /= 2;
        }
        if (tiles.shared_bytes(head_dim) > shared_limit) tiles.keys /= 2;
        return tiles;
    }
};

struct F32BackwardTiles {
    int key_groups;  ///< 16-key groups
    /// Warps that share a 16-key group. With 2, each warp computes half the S rows and half the dK and dV
    /// columns, and P is exchanged through shared memory, too. One warp's registers hold at most 64 columns
    /// each for dK and dV.
    int warps_per_keys;
    bool loads_ahead;       ///< the next step's rows are loaded into registers during this step
    bool separate_factors;  ///< P and dS have separate shared memory, which saves two barriers
    int blocks_per_sm;

    static constexpr int rows = 32;  ///< Q and dO rows per step
    constexpr int keys() const { return key_groups * 16; }
    constexpr int warps() const { return key_groups * warps_per_keys; }
    constexpr int threads() const { return warps() * 32; }
    constexpr int factor_tiles() const { return warps_per_keys == 2 && separate_factors ? 2 : 1; }
    /// Bytes for K, V, Q, dO, dS and P in two planes each, and for two floats per row.
    constexpr int shared_bytes(int head_dim) const {
        return 2 * 2 * (2 * (keys() + rows) * head_dim + factor_tiles() * keys() * rows) + 2 * 4 * rows;
    }
    constexpr bool operator==(const F32BackwardTiles&) const = default;
};

/// Row blocks per head in the backward pass, each of which has a turn counter.
inline std::int64_t f32_turn_steps(const PackedSequences& packed, std::int64_t queries) {
    static_assert(packed_row_padding % F32BackwardTiles::rows == 0);
    return ceil_div(packed ? padded_packed_rows(packed, queries) : queries, F32BackwardTiles::rows);
}

/// Tile sizes for head dims up to `head_dim`.
template <int head_dim>
struct F32BackwardChoice {
    static constexpr F32BackwardTiles tiles(int shared_limit) {
        // A block has many keys, because every block must split all Q and dO rows into planes and add to all
        // dQ rows.
        if (head_dim <= 32)
            return {.key_groups = 4,
                    .warps_per_keys = 1,
                    .loads_ahead = true,
                    .separate_factors = true,
                    .blocks_per_sm = 2};
        if (head_dim <= 64)
            return {.key_groups = 8,
                    .warps_per_keys = 1,
                    .loads_ahead = true,
                    .separate_factors = true,
                    .blocks_per_sm = 1};
        F32BackwardTiles tiles{.key_groups = 4,
                               .warps_per_keys = 2,
                               .loads_ahead = true,
                               .separate_factors = true,
                               .blocks_per_sm = 1};
        if (tiles.shared_bytes(head_dim) <= shared_limit) return tiles;
        tiles.key_groups = 2;
        // a block with half as many threads has twice as many registers per thread
        tiles.loads_ahead = head_dim <= 128;
        if (tiles.shared_bytes(head_dim) <= shared_limit) return tiles;
        tiles.key_groups = 1;
        tiles.separate_factors = false;
        return tiles;
    }
};

}  // namespace gradtile::attention::cuda
