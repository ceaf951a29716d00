#pragma once
/// INTERNAL. Block sizes of the 16-bit kernels of the GPU. Figures behind the choices, made on a GPU that
/// allows a block 227 KB of shared memory: bench/results/2026-11-21-h200-attention.md. The smaller ones were
/// chosen to fit.
#include <gradtile/attention/cuda/shared_memory_limits.h>

namespace gradtile::attention::cuda {

using Bits16HeadDims = HeadDims<32, 64, 96, 128, 192, 256>;

/// Bytes that kernels keep in shared memory beside their tiles, at most.
inline constexpr int static_shared_bytes = 128;

struct Bits16ForwardTiles {
    int warps;
    int warp_rows;  ///< 32: each K/V fragment that ldmatrix brings serves two products; 16: one
    int keys;
    int stages;         ///< K/V blocks in shared memory
    int blocks_per_sm;  ///< what registers are bounded for
    int unrolled;       ///< see multiply_a_bt

    constexpr int threads() const { return 32 * warps; }
    constexpr int rows() const { return warps * warp_rows; }
    constexpr int shared_bytes(int head_dim) const { return 2 * head_dim * (rows() + 2 * stages * keys); }
    constexpr bool fit(int head_dim, int shared_limit) const {
        return shared_bytes(head_dim) + static_shared_bytes <= shared_limit;
    }
    constexpr bool operator==(const Bits16ForwardTiles&) const = default;
};

/// For head dims up to `head_dim`.
template <int head_dim>
struct Bits16ForwardChoice {
    static constexpr Bits16ForwardTiles tiles(int shared_limit) {
        // 32 rows a warp while O (head_dim registers a lane) and S (half the keys) leave two blocks room on a
        // multiprocessor; then while one's warps take exponentials the other's keep the tensor cores busy.
        if (head_dim <= 32)
            return {.warps = 4, .warp_rows = 32, .keys = 64, .stages = 2, .blocks_per_sm = 3, .unrolled = 2};
        if (head_dim <= 64)
            return {.warps = 4, .warp_rows = 32, .keys = 128, .stages = 2, .blocks_per_sm = 2, .unrolled = 4};
        if (head_dim <= 128)
            return {.warps = 4, .warp_rows = 32, .keys = 64, .stages = 2, .blocks_per_sm = 2, .unrolled = 4};
        Bits16ForwardTiles tiles{
            .warps = 8, .warp_rows = 16, .keys = 64, .stages = 2, .blocks_per_sm = 1, .unrolled = 16};
        if (!tiles.fit(head_dim, shared_limit)) tiles.keys = 32;
        if (!tiles.fit(head_dim, shared_limit)) tiles.warps = 4;
        return tiles;
    }
};

struct Bits16BackwardTiles {
    int rows;           ///< 32, 64 or 128
    int pairs;          ///< of warps
    int pair_keys;      ///< 32, or 16 where registers do not allow more
    int d_q_row_warps;  ///< warps along the rows of dQ; the others divide its columns
    int blocks_per_sm;  ///< what registers are bounded for
    int unrolled;       ///< see multiply_a_bt
    int d_q_unrolled;   ///< the same for dQ's product

    constexpr int warps() const { return 2 * pairs; }
    constexpr int threads() const { return 32 * warps(); }
    constexpr int keys() const { return pairs * pair_keys; }
    constexpr int shared_bytes(int head_dim) const {
        const int kv = 2 * keys() * head_dim, streamed = 2 * 2 * rows * head_dim;
        const int d_s = 2 * keys() * rows, statistics = 2 * 2 * rows * 2;
        return 2 * (kv + streamed + d_s + statistics);
    }
    constexpr bool fit(int head_dim, int shared_limit) const {
        return shared_bytes(head_dim) + static_shared_bytes <= shared_limit;
    }
    constexpr bool operator==(const Bits16BackwardTiles&) const = default;
};

/// For head dims up to `head_dim`.
template <int head_dim>
struct Bits16BackwardChoice {
    static constexpr Bits16BackwardTiles tiles(int shared_limit) {
        // A gradient of 32 keys takes head_dim registers a lane, S or dP half the rows. Two blocks a
        // multiprocessor where both are small; long blocks of rows where they fit, since each costs a
        // barrier.
        if (head_dim <= 32)
            return {.rows = 64,
                    .pairs = 4,
                    .pair_keys = 32,
                    .d_q_row_warps = 4,
                    .blocks_per_sm = 2,
                    .unrolled = 1,
                    .d_q_unrolled = 4};
        Bits16BackwardTiles tiles{.rows = 64,
                                  .pairs = 4,
                                  .pair_keys = 32,
                                  .d_q_row_warps = 4,
                                  .blocks_per_sm = 1,
                                  .unrolled = 4,
                                  .d_q_unrolled = 8};
        if (head_dim <= 64) {
            tiles.rows = 128;
            if (!tiles.fit(head_dim, shared_limit)) tiles.rows = 64;
            return tiles;
        }
        if (head_dim <= 96) {
            tiles.unrolled = 6;
            if (!tiles.fit(head_dim, shared_limit)) tiles.pair_keys = 16;
            return tiles;
        }
        tiles.d_q_row_warps = 2;
        tiles.d_q_unrolled = 4;
        if (head_dim <= 128) {
            tiles.unrolled = 8;
            if (!tiles.fit(head_dim, shared_limit)) {
                tiles.pairs = 2;
                tiles.pair_keys = 16;
            }
            return tiles;
        }
        // The gradient of 32 keys would take all the registers there are.
        tiles.unrolled = 12;
        tiles.pair_keys = 16;
        if (!tiles.fit(head_dim, shared_limit)) tiles.rows = 32;
        while (!tiles.fit(head_dim, shared_limit) && tiles.pairs > 1) tiles.pairs /= 2;
        return tiles;
    }

    /// Up to so many rows a thread block may take a whole head, one block of keys after the other, with dQ in
    /// shared memory: what the tiles leave of it holds that many. 0: not worth a kernel of its own.
    static constexpr int whole_head_rows(int shared_limit) {
        if (head_dim != 64) return 0;
        const int left = shared_limit - static_shared_bytes - tiles(shared_limit).shared_bytes(head_dim);
        const int d_q_row_bytes = 4 * head_dim, rows = tiles(shared_limit).rows;
        return left < rows * d_q_row_bytes ? 0 : left / d_q_row_bytes / rows * rows;
    }
};

}  // namespace gradtile::attention::cuda
