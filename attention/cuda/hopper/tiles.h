#pragma once
/// INTERNAL. The policy of the Hopper kernels (sm_90a: wgmma and TMA): tiles, schedules and thresholds. The
/// schedules that follow from it are in schedule.h. The reasons are figures of one H100 in bfloat16, in
/// TFLOP/s unless another unit is given, from bench/results/2026-11-24-hopper-h100.md and
/// 2026-11-25-hopper-h100.md.
///
///     gradtile bench attention --device cuda --dtype bf16 --tune --head-dim D --length S
///
/// times every choice: schedules in every build, tiles (candidates.h) in a build with
/// -DGRADTILE_TUNE=ON.
#include <algorithm>
#include <cstdint>

#include <gradtile/attention/cuda/shared_memory_limits.h>

namespace gradtile::attention::cuda {

/// Multiprocessors of an H100 or H200 with all its memory. Schedules are made for this number; others have
/// slightly fewer.
inline constexpr int hopper_processors = 132;

/// A thread block has one producer warpgroup, which starts the copies, and consumer warpgroups, which
/// compute.
struct HopperForwardTiles {
    int consumers;  ///< warpgroups of 64 rows each
    int keys;
    int stages;    ///< K/V blocks that are in shared memory at the same time
    int q_stages;  ///< blocks of rows of Q; 1: O shares the memory of Q
    bool ordered;  ///< whether warpgroups start their products in turns

    constexpr int rows() const { return 64 * consumers; }
    constexpr int threads() const { return 128 * (consumers + 1); }
    // Together not more than a block is launched with: 65536 / threads() each, rounded down to a multiple
    // of 8.
    constexpr int producer_registers() const { return consumers == 3 ? 32 : 24; }
    constexpr int consumer_registers() const { return consumers == 2 ? 240 : consumers == 3 ? 160 : 112; }
    constexpr bool has_o() const { return q_stages > 1; }
    constexpr int shared_bytes(int qk_dim, int v_dim) const {
        const int kv = stages * keys * (qk_dim + v_dim), q = q_stages * rows() * qk_dim, o = rows() * v_dim;
        return 2 * (kv + q + (has_o() ? o : 0)) + ring_bytes;
    }
    static constexpr int ring_bytes = 512;  ///< upper bound of the barriers
    constexpr bool operator==(const HopperForwardTiles&) const = default;
};

/// `applies_rules`: whether the kernel applies a formula or dropout, which need registers.
constexpr HopperForwardTiles hopper_forward_tiles(int qk_dim, bool applies_rules) {
    if (qk_dim <= 64 && applies_rules)
        return {.consumers = 2, .keys = 128, .stages = 2, .q_stages = 2, .ordered = true};
    // Causal, with three consumers and with two: 469 and 394 at S 16,384, 258 and 221 at S 1,024. With turns
    // and without: 494 and 445 at S 16,384, 160 and 168 at S 512. More stages changed nothing.
    if (qk_dim <= 64) return {.consumers = 3, .keys = 128, .stages = 2, .q_stages = 2, .ordered = true};
    // O has memory of its own. Without this memory 176 keys fit, but the kernel had 710 instead of 725 at
    // S 16,384, and 311 instead of 362 at S 1,024 causal.
    if (qk_dim <= 128) return {.consumers = 2, .keys = 128, .stages = 2, .q_stages = 2, .ordered = true};
    // The most keys that fit shared memory.
    if (qk_dim <= 192) return {.consumers = 2, .keys = 112, .stages = 2, .q_stages = 1, .ordered = false};
    return {.consumers = 2, .keys = 80, .stages = 2, .q_stages = 1, .ordered = false};
}

/// Plain dense calls of this head dim with at most hopper_short_keys keys have other tiles. Causal: 426
/// instead of 383 at S 4,096, 317 instead of 281 at S 1,024.
inline constexpr int hopper_short_head_dim = 64, hopper_short_keys = 4096;
inline constexpr HopperForwardTiles hopper_short_forward_tiles{
    .consumers = 4, .keys = 64, .stages = 2, .q_stages = 2, .ordered = true};

/// Head dims of the backward kernels whose warpgroups divide the keys. Others use the next larger one. Head
/// dims above the largest have kernels whose warpgroups divide the columns.
using HopperBackwardHeadDims = HeadDims<32, 64, 128>;
inline constexpr int hopper_backward_keys_max_head_dim = 128;
/// An upper bound of the columns of the sums of dQ, for a head dim padded as for the other 16-bit kernels.
inline int padded_hopper_head_dim(int head_dim) {
    return head_dim > hopper_backward_keys_max_head_dim ? head_dim
                                                        : padded_head_dim(HopperBackwardHeadDims{}, head_dim);
}

/// Two consumer warpgroups take 64 keys each. Two blocks of rows of Q and dO are in shared memory at the same
/// time.
struct HopperBackwardTiles {
    int rows;  ///< 64 or 128
    /// Whether P is kept in 16 bits only, so that registers are free for more rows.
    bool keeps_p_in_16_bits;
    /// Whether the sums of dQ may exist for the heads in flight only (see hopper_ring_max_keys), if their
    /// order is not fixed and sequences are not packed.
    bool may_sum_in_ring;
    int d_q_stages;  ///< blocks of rows of dQ that are in shared memory at the same time, 1 or 2
    static constexpr int keys = 128, consumers = 2;

    static constexpr int threads() { return 128 * (consumers + 1); }
    /// Bytes of K, V and their gradients, of the stages of Q and dO with their statistics, and of dS.
    constexpr int shared_bytes(int head_dim) const {
        const int kv = 2 * keys * head_dim, gradients = kv, row_stages = 2 * 2 * rows * (head_dim + 2),
                  d_s = 2 * rows * keys;
        return 2 * (kv + gradients + row_stages + d_s) + ring_bytes;
    }
    static constexpr int ring_bytes = 512;  ///< upper bound of the barriers
    constexpr bool operator==(const HopperBackwardTiles&) const = default;
};

/// `applies_rules`: whether the kernel applies a formula, dropout or biases, which need registers.
constexpr HopperBackwardTiles hopper_backward_tiles(int head_dim, bool applies_rules) {
    // A block of rows costs a barrier, so the more rows the better. But S, dP and, for a while, dQ take rows
    // / 2 registers each, and dK and dV take head_dim / 2 each: too many for 128 rows and a head dim of 64,
    // unless P of the block is kept in 16 bits from the exponentials on. In ms, causal, with 64 rows and with
    // 128: 1.13 and 1.02 for 64 x 12 heads at S 1,024, 2.05 and 1.82 for 4 x 32 at 4,096, 6.50 and 5.94 for
    // 32 at 16,384 (bench/results/2026-11-25-backward-h100.md).
    // At head dim 128, P in 16 bits does not allow more rows, and took 1.65 ms in place of 1.55 for 4 x 16
    // heads at S 4,096. A ring of sums took 2.42 ms there: its finishers take registers of the consumers.
    const bool keeps_p_in_16_bits = head_dim > 32 && head_dim <= 64 && !applies_rules;
    return {.rows = head_dim <= 32 || keeps_p_in_16_bits ? 128 : 64,
            .keeps_p_in_16_bits = keeps_p_in_16_bits,
            .may_sum_in_ring = head_dim <= 64,
            .d_q_stages = keeps_p_in_16_bits ? 1 : 2};
}

/// Tiles of the gradient of a bias. Two consumer warpgroups take 64 rows each.
struct HopperBiasGradientTiles {
    static constexpr int rows = 128, keys = 128, consumers = 2;
    int stages;  ///< batches whose Q, dO, K and V are in shared memory at the same time

    static constexpr int threads() { return 128 * (consumers + 1); }
    /// Warps that load biases of keys. A warp skips the stages of the others: with more warps than stages it
    /// could run two phases ahead of the consumers, where a barrier's parity does not stop it.
    constexpr int key_bias_warps() const { return stages < 3 ? stages : 3; }
    // See HopperForwardTiles.
    static constexpr int producer_registers = 40, consumer_registers = 232;
    /// Bytes of the tile of the bias, which may be float32, of Q, dO, K and V, and of LSE, D and the biases
    /// of keys.
    constexpr int shared_bytes(int head_dim) const {
        return 4 * rows * keys + stages * (2 * 2 * (rows + keys) * head_dim + 4 * (2 * rows + keys)) +
               ring_bytes;
    }
    static constexpr int ring_bytes = 256;  ///< upper bound of the barriers
};
constexpr HopperBiasGradientTiles hopper_bias_gradient_tiles(int head_dim) {
    return {.stages = head_dim <= 32 ? 4 : 2};
}

/// Bytes per row of Q, dO and the sums of dQ: all blocks of keys of a head use them, from the L2 cache.
constexpr std::int64_t hopper_backward_row_bytes(int qk_dim, int v_dim) {
    return std::int64_t{2} * (qk_dim + v_dim) + std::int64_t{4} * qk_dim;
}

/// Two consumer warpgroups take half of the columns of dK and dV each.
struct HopperColumnsTiles {
    // dK, dV and dQ take 3 / 4 of a register per key and column each: at a head dim of 256, 64 keys are the
    // most. dS and P in shared memory leave no room for more rows.
    static constexpr int rows = 64, keys = 64, consumers = 2, stages = 2;

    static constexpr int threads() { return 128 * (consumers + 1); }
    /// Bytes of K and V, of the stages of Q and dO with their statistics, of dS, and of P.
    static constexpr int shared_bytes(int qk_dim, int v_dim) {
        const int kv = keys * (qk_dim + v_dim), row_stages = stages * rows * (qk_dim + v_dim + 4),
                  d_s = stages * rows * keys, p = rows * keys;
        return 2 * (kv + row_stages + d_s + p) + ring_bytes;
    }
    static constexpr int ring_bytes = 512;  ///< upper bound of the barriers
};

/// Whether a task of the forward pass is a pair of blocks of rows, counted from both ends of a head, or one
/// block. Under a causal mask, the first and the last block together have as many keys as the second and the
/// last but one, and so on. As tasks, such pairs keep all multiprocessors equally busy, if there are enough
/// of them. Causal, with pairs and with single blocks: 785 and 480 at D 256; 661 and 565 at D 128, S 16,384;
/// 360 and 322 at D 64, S 2,048.
constexpr bool hopper_forward_has_pairs(std::int64_t heads, std::int64_t row_blocks,
                                        std::int64_t processors) {
    return heads * ((row_blocks + 1) / 2) >= 2 * processors;
}

/// Calls with more keys have sums of dQ of all heads, not of those in flight. Other kernels have to clear and
/// round such sums, which takes a larger part of the time the fewer keys there are. At head dim 64, causal,
/// with a ring and without: 260 and 242 at S 1,024, 334 and 298 at 2,048 (the ring with additions by
/// threads), 383 and 392 at 4,096 and 461 and 473 at 16,384. At 4,096 the ring is kept, because it takes less
/// memory.
inline constexpr std::int64_t hopper_ring_max_keys = 8192;

/// Slots of the ring of the sums of dQ, in addition to those of a set of heads. A task waits for all tasks of
/// the head that used its slot before. The last of these tasks was started at least tasks_between tasks
/// earlier, two for each multiprocessor of an H100, so it is usually complete. With a slot for every head the
/// sums do not stay in the L2 cache, and the backward pass took 1,407 us instead of 975.
constexpr std::int64_t hopper_more_slots(std::int64_t set_heads, std::int64_t key_blocks) {
    constexpr std::int64_t tasks_between = 2 * hopper_processors;
    return std::max(set_heads, (tasks_between + key_blocks - 1) / key_blocks);
}

// Sets of heads: TaskOrder (device/task_order.cuh), for all kernels. The backward pass with a ring took 1,040
// us with sets of 12 MB and 975 us with sets of 24 MB; sets of 36 MB changed nothing.
// Short heads: enough_whole_heads (16bit/tiles.h), for the kernels for sm_80, too.

}  // namespace gradtile::attention::cuda
