#pragma once
/// INTERNAL. Tile sizes of the float32 kernels of the GPU. Measurements behind the choices:
/// bench/results/2026-11-21-h200-attention-f32.md.
#include <gradtile/attention/cuda/shared_memory_limits.h>

namespace gradtile::attention::cuda {

using F32HeadDims = HeadDims<32, 64, 128, 256>;

struct F32ForwardTiles {
    int warps;
    int row_tiles;  ///< tiles of 16 rows per warp
    int keys;
    int blocks_per_sm;  ///< thread blocks per multiprocessor; limits the registers per thread

    constexpr int rows() const { return warps * row_tiles * 16; }
    constexpr int threads() const { return warps * 32; }
    /// Bytes of Q, K and V, each in two planes of 16 bits (device/split_float.cuh).
    constexpr int shared_bytes(int head_dim) const { return 2 * 2 * head_dim * (rows() + 2 * keys); }
    constexpr bool operator==(const F32ForwardTiles&) const = default;
};

/// Tile sizes of the kernel for head dims up to `head_dim`.
template <int head_dim>
struct F32ForwardChoice {
    static constexpr F32ForwardTiles tiles(int shared_limit) {
        // Two row tiles per warp halve the loads of K and V from shared memory, which otherwise take as long
        // as the products. From 128 columns on, O leaves no registers for a second row tile.
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
    int key_groups;  ///< groups of 16 keys
    /// Warps that share a group of 16 keys. With 2, each warp computes half of the rows of S and half of the
    /// columns of dK and dV, and P is exchanged through shared memory, too. One warp's registers hold at most
    /// 64 columns of dK and dV.
    int warps_per_keys;
    bool loads_ahead;       ///< the next step's rows are loaded into registers during this step
    bool separate_factors;  ///< P and dS have separate shared memory, which saves two barriers
    int blocks_per_sm;

    static constexpr int rows = 32;  ///< rows of Q and dO per step
    constexpr int keys() const { return key_groups * 16; }
    constexpr int warps() const { return key_groups * warps_per_keys; }
    constexpr int threads() const { return warps() * 32; }
    constexpr int factor_tiles() const { return warps_per_keys == 2 && separate_factors ? 2 : 1; }
    /// Bytes of K, V, Q, dO, dS and P in two planes each, and of two floats per row.
    constexpr int shared_bytes(int head_dim) const {
        return 2 * 2 * (2 * (keys() + rows) * head_dim + factor_tiles() * keys() * rows) + 2 * 4 * rows;
    }
    constexpr bool operator==(const F32BackwardTiles&) const = default;
};

/// Tile sizes of the kernel for head dims up to `head_dim`.
template <int head_dim>
struct F32BackwardChoice {
    static constexpr F32BackwardTiles tiles(int shared_limit) {
        // A block has many keys, because every block must split all rows of Q and dO into planes and add to
        // all rows of dQ.
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
