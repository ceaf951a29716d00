#pragma once
/// INTERNAL. Tile sizes for the 16-bit GPU kernels. The sizes for 227 KB of shared memory per thread block
/// were measured: bench/results/2026-11-21-h200-attention.md. The sizes for less shared memory were chosen to
/// fit.
#include <cstdint>

#include <gradtile/attention/cuda/common/shared_memory_limits.h>
#include <gradtile/attention/internal/flash_plan.h>

namespace gradtile::attention::cuda {

/// Whether scores have terms besides products. Kernels then hold natural scores, which may be large.
constexpr bool has_terms(RuleKind kind) {
    return kind == RuleKind::pair_bias || kind == RuleKind::any;
}
/// Whether the kernels for head dims up to `head_dim` have a version for this kind. If not, calls of this
/// kind use the version for any rule.
constexpr bool has_kernels(RuleKind kind, int head_dim) {
    return kind == RuleKind::dropout     ? head_dim == 64 || head_dim == 128
           : kind == RuleKind::pair_bias ? head_dim == 32 || head_dim == 64
                                         : true;
}

/// Upper bound in bytes on the shared memory that a kernel uses in addition to its tiles.
inline constexpr int static_shared_bytes = 128;
/// Upper bound in bytes on the shared memory for two heads' rules.
inline constexpr int rule_shared_bytes = 512;

struct Bits16ForwardTiles {
    int warps;
    int warp_rows;  ///< 32: two products for each K/V fragment that ldmatrix loads; 16: one product
    int keys;
    int stages;               ///< K/V blocks that are in shared memory at the same time
    int blocks_per_sm;        ///< thread blocks per multiprocessor; limits the registers per thread
    int unrolled;             ///< see multiply_a_bt
    bool reads_bias = false;  ///< whether a stage has a bias tile, too

    constexpr int threads() const { return 32 * warps; }
    constexpr int rows() const { return warps * warp_rows; }
    constexpr int shared_bytes(int head_dim) const {
        const int biases = reads_bias ? 2 * rows() * keys + 4 * keys : 0;  // pair bias and key bias
        return 2 * head_dim * (rows() + 2 * stages * keys) + stages * biases;
    }
    constexpr bool fit(int head_dim, int shared_limit) const {
        return shared_bytes(head_dim) + static_shared_bytes <= shared_limit;
    }
    constexpr bool operator==(const Bits16ForwardTiles&) const = default;
};

/// Tile sizes for head dims up to `head_dim`.
template <int head_dim>
struct Bits16ForwardChoice {
    static constexpr Bits16ForwardTiles tiles(int shared_limit) {
        // A warp has 32 rows if two thread blocks then still fit a multiprocessor. Per lane, O then takes
        // head_dim registers, and S half as many registers as the block has keys. With two blocks, one
        // block's warps use the tensor cores while the other block's warps compute exponentials.
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

/// Tile sizes for the kernel that applies score rules. Rules need registers, so S has fewer columns.
template <int head_dim>
struct Bits16RuleForwardChoice {
    static constexpr Bits16ForwardTiles tiles(int shared_limit) {
        Bits16ForwardTiles tiles = Bits16ForwardChoice<head_dim>::tiles(shared_limit - rule_shared_bytes);
        if (head_dim <= 32) tiles.blocks_per_sm = 2;
        if (head_dim > 32 && head_dim <= 64) tiles.keys = 64;
        if (head_dim > 64 && head_dim <= 128) tiles.keys = 32;
        return tiles;
    }
};

/// Tile sizes for the kernel with dropout.
template <int head_dim>
struct Bits16DropoutForwardChoice {
    static constexpr Bits16ForwardTiles tiles(int shared_limit) {
        Bits16ForwardTiles tiles = Bits16ForwardChoice<head_dim>::tiles(shared_limit - rule_shared_bytes);
        if (tiles.keys > 64) tiles.keys = 64;
        if (head_dim > 64) tiles.keys = 32;
        return tiles;
    }
};
/// Tile sizes for the kernel that reads bias tiles.
template <int head_dim>
struct Bits16PairBiasForwardChoice {
    static constexpr Bits16ForwardTiles tiles(int shared_limit) {
        Bits16ForwardTiles tiles = Bits16ForwardChoice<head_dim>::tiles(shared_limit - rule_shared_bytes);
        if (tiles.keys > 64) tiles.keys = 64;
        tiles.reads_bias = true;
        return tiles;
    }
};

struct Bits16BackwardTiles {
    int rows;                 ///< 32, 64 or 128
    int pairs;                ///< warp pairs
    int pair_keys;            ///< keys per pair: 32, or 16 where registers do not allow more
    int d_q_row_warps;        ///< warps along dQ's rows; warps() / d_q_row_warps along its columns
    int blocks_per_sm;        ///< thread blocks per multiprocessor; limits the registers per thread
    int unrolled;             ///< see multiply_a_bt
    int d_q_unrolled;         ///< `unrolled` for the product dS K
    bool reads_bias = false;  ///< whether a row block has a bias tile, too

    constexpr int warps() const { return 2 * pairs; }
    constexpr int threads() const { return 32 * warps(); }
    constexpr int keys() const { return pairs * pair_keys; }
    constexpr int shared_bytes(int head_dim) const {
        const int kv = 2 * keys() * head_dim, streamed = 2 * 2 * rows * head_dim;
        const int d_s = 2 * keys() * rows, statistics = 2 * 2 * rows * 2;
        const int bias = reads_bias ? 2 * rows * keys() : 0;
        return 2 * (kv + streamed + d_s + statistics + bias);
    }
    constexpr bool fit(int head_dim, int shared_limit) const {
        return shared_bytes(head_dim) + static_shared_bytes <= shared_limit;
    }
    constexpr bool operator==(const Bits16BackwardTiles&) const = default;
};

/// Tile sizes for head dims up to `head_dim`.
template <int head_dim>
struct Bits16BackwardChoice {
    static constexpr Bits16BackwardTiles tiles(int shared_limit) {
        // Per lane, a gradient for 32 keys takes head_dim registers, and S or dP half as many registers as
        // the block has rows. If both are small, two thread blocks share a multiprocessor. Row blocks are as
        // long as possible, because each one costs a barrier.
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
        // A gradient for 32 keys would take all registers.
        tiles.unrolled = 12;
        tiles.pair_keys = 16;
        if (!tiles.fit(head_dim, shared_limit)) tiles.rows = 32;
        while (!tiles.fit(head_dim, shared_limit) && tiles.pairs > 1) tiles.pairs /= 2;
        return tiles;
    }

    /// The maximum number of rows per head that one thread block can process alone. Such a thread block loops
    /// over the key blocks and keeps dQ in the shared memory that the tiles leave free. 0 if the head dim has
    /// no such kernel.
    static constexpr int whole_head_rows(int shared_limit) {
        if (head_dim != 64) return 0;
        const int left = shared_limit - static_shared_bytes - tiles(shared_limit).shared_bytes(head_dim);
        const int d_q_row_bytes = 4 * head_dim, rows = tiles(shared_limit).rows;
        return left < rows * d_q_row_bytes ? 0 : left / d_q_row_bytes / rows * rows;
    }
};

/// With fewer heads than this, thread blocks that process whole heads would leave multiprocessors idle.
inline constexpr std::int64_t enough_whole_heads = 256;

/// Tile sizes for the kernel that applies score rules, with smaller tiles for the registers that rules need.
template <int head_dim>
struct Bits16RuleBackwardChoice {
    static constexpr Bits16BackwardTiles tiles(int shared_limit) {
        Bits16BackwardTiles tiles = Bits16BackwardChoice<head_dim>::tiles(shared_limit - rule_shared_bytes);
        tiles.blocks_per_sm = 1;
        if (tiles.rows > 64) tiles.rows = 64;
        if (head_dim > 128) tiles.pair_keys = 16;
        return tiles;
    }
};

/// Tile sizes for the kernel with dropout.
template <int head_dim>
struct Bits16DropoutBackwardChoice {
    static constexpr Bits16BackwardTiles tiles(int shared_limit) {
        Bits16BackwardTiles tiles = Bits16BackwardChoice<head_dim>::tiles(shared_limit - rule_shared_bytes);
        if (tiles.rows > 64) tiles.rows = 64;
        return tiles;
    }
};
/// Tile sizes for the kernel that reads bias tiles.
template <int head_dim>
struct Bits16PairBiasBackwardChoice {
    static constexpr Bits16BackwardTiles tiles(int shared_limit) {
        Bits16BackwardTiles tiles = Bits16BackwardChoice<head_dim>::tiles(shared_limit - rule_shared_bytes);
        if (tiles.rows > 64) tiles.rows = 64;
        tiles.reads_bias = true;
        if (!tiles.fit(head_dim, shared_limit - rule_shared_bytes)) tiles.pairs /= 2;
        return tiles;
    }
};

/// Tile sizes for the kernel that computes the gradient of a pair bias, which it reads in query-key tiles.
template <int head_dim>
struct Bits16PairBiasGradientChoice {
    struct Tiles {
        int rows, keys, stages;
        static constexpr int warp_rows = 32, warp_keys = 32;
        constexpr int threads() const { return rows / warp_rows * (keys / warp_keys) * 32; }
        /// Bytes per stage: rows of Q, dO, K and V, LSE, D, and a key bias.
        constexpr int stage_bytes() const { return 2 * 2 * head_dim * (rows + keys) + 4 * (2 * rows + keys); }
        constexpr int shared_bytes() const { return 2 * rows * keys + stages * stage_bytes(); }
        constexpr bool operator==(const Tiles&) const = default;
    };
    static constexpr Tiles tiles(int shared_limit) {
        Tiles tiles{.rows = 128, .keys = 128, .stages = 3};
        while (tiles.shared_bytes() > shared_limit && tiles.stages > 2) --tiles.stages;
        if (tiles.shared_bytes() > shared_limit) tiles.rows = 64;
        if (tiles.shared_bytes() > shared_limit) tiles.keys = 64;
        return tiles;
    }
};

/// Tile sizes for the kernel that computes other bias gradients: each warp takes 16 rows.
template <int head_dim>
struct Bits16BiasGradientChoice {
    struct Tiles {
        int rows, keys, stages;
        static constexpr int blocks_per_sm = 2;  ///< by registers; large head dims fill shared memory earlier
        constexpr int threads() const { return rows / 16 * 32; }
        /// Bytes in all stages: rows of Q, dO, K and V.
        constexpr int shared_bytes() const { return stages * 2 * 2 * head_dim * (rows + keys); }
        constexpr bool fit(int shared_limit) const {
            return shared_bytes() + rule_shared_bytes <= shared_limit;
        }
        constexpr bool operator==(const Tiles&) const = default;
    };
    static constexpr Tiles tiles(int shared_limit) {
        Tiles tiles{.rows = 64, .keys = 64, .stages = 2};
        if (!tiles.fit(shared_limit)) tiles.keys = 32;
        if (!tiles.fit(shared_limit)) tiles.stages = 1;
        if (!tiles.fit(shared_limit)) tiles.rows = 32;
        return tiles;
    }
};

}  // namespace gradtile::attention::cuda
