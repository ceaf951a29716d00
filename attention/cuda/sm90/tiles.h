#pragma once
/// INTERNAL. The policy for the Hopper kernels (sm_90a: wgmma and TMA): tiles, schedules and thresholds.
/// schedule.h builds the schedules from it. The reasons given are measurements on one H100 in bfloat16, in
/// TFLOP/s unless another unit is given, from bench/results/2026-11-24-hopper-h100.md and
/// 2026-11-25-hopper-h100.md.
///
///     gradtile bench attention --device cuda --dtype bf16 --tune --head-dim D --length S
///
/// times every choice: schedules in every build, tiles (candidates.h) in a build with
/// -DGRADTILE_TUNE=ON.
#include <algorithm>
#include <cstdint>

#include <gradtile/attention/cuda/common/shared_memory_limits.h>
#include <gradtile/attention/cuda/sm90/rules.h>
#include <gradtile/attention/mask.h>

namespace gradtile::attention::cuda {

/// Multiprocessors in an H100 or H200 with all its memory. Schedules are made for this number; other models
/// have slightly fewer.
inline constexpr int hopper_processors = 132;

/// A thread block has one producer warpgroup, which starts the copies, and consumer warpgroups, which
/// compute.
struct HopperForwardTiles {
    int consumers;  ///< warpgroups of 64 rows each
    int keys;
    int stages;    ///< K/V blocks that are in shared memory at the same time
    int q_stages;  ///< Q row blocks in shared memory; if 1 and not in registers, O shares Q's memory
    bool ordered;  ///< whether warpgroups start their products in turns
    bool q_in_registers = false;  ///< whether consumers keep Q in registers, as the left operand of S

    constexpr int rows() const { return 64 * consumers; }
    constexpr int threads() const { return 128 * (consumers + 1); }
    // Together, all threads may take no more registers than the block is launched with: 65536 / threads() per
    // thread, rounded down to a multiple of 8.
    constexpr int producer_registers() const { return consumers == 3 ? 32 : 24; }
    constexpr int consumer_registers() const { return consumers == 2 ? 240 : consumers == 3 ? 160 : 112; }
    constexpr bool has_o() const { return q_stages > 1 || q_in_registers; }
    constexpr int shared_bytes(int qk_dim, int v_dim) const {
        const int kv = stages * keys * (qk_dim + v_dim), q = q_stages * rows() * qk_dim, o = rows() * v_dim;
        return 2 * (kv + q + (has_o() ? o : 0)) + ring_bytes;
    }
    static constexpr int ring_bytes = 512;  ///< upper bound on the size of the barriers
    constexpr bool operator==(const HopperForwardTiles&) const = default;
};

/// The kernels of one head dim.
constexpr HopperForwardTiles hopper_forward_tiles(int qk_dim, HopperRule rule, bool is_packed) {
    if (qk_dim <= 64 && may_drop(rule))  // a formula and dropout need registers
        return {.consumers = 2, .keys = 128, .stages = 2, .q_stages = 2, .ordered = true};
    // Causal, with three consumers and with two: 469 and 394 at S 16,384, 258 and 221 at S 1,024. With turns
    // and without: 494 and 445 at S 16,384, 160 and 168 at S 512. More stages changed nothing.
    if (qk_dim <= 64) return {.consumers = 3, .keys = 128, .stages = 2, .q_stages = 2, .ordered = true};
    // With Q in registers, products read less shared memory. One H200: causal, 0.160 ms instead of 0.176 for
    // 16 x 16 heads at S 1,024 and 0.491 instead of 0.511 for 4 x 16 at 4,096; full, 3.33 instead of 3.48 for
    // 16 at 16,384 (bench/results/2026-11-30-h200-kernels.md). Kernels with rules need these registers.
    if (qk_dim == 128 && rule == HopperRule::products && !is_packed)
        return {
            .consumers = 2, .keys = 128, .stages = 2, .q_stages = 1, .ordered = true, .q_in_registers = true};
    // O has its own memory. Without this memory 176 keys fit, but the kernel had 710 instead of 725 at S
    // 16,384, and 311 instead of 362 at S 1,024 causal.
    if (qk_dim <= 128) return {.consumers = 2, .keys = 128, .stages = 2, .q_stages = 2, .ordered = true};
    // The most keys that fit shared memory.
    if (qk_dim <= 192) return {.consumers = 2, .keys = 112, .stages = 2, .q_stages = 1, .ordered = false};
    return {.consumers = 2, .keys = 80, .stages = 2, .q_stages = 1, .ordered = false};
}

/// Plain dense calls with this head dim and at most hopper_short_keys keys use other tiles. Causal: 426
/// instead of 383 at S 4,096, 317 instead of 281 at S 1,024.
inline constexpr int hopper_short_head_dim = 64, hopper_short_keys = 4096;
inline constexpr HopperForwardTiles hopper_short_forward_tiles{
    .consumers = 4, .keys = 64, .stages = 2, .q_stages = 2, .ordered = true};

/// The only head dim of the kernel for few queries, which takes more than hopper_few_queries_min_rows rows.
/// For other calls the kernel for all GPUs is as fast or faster. Measured on an H100 with `gradtile bench
/// attention` (--queries 64 --length 16384 --batch 8 --heads 16): the Hopper kernel reads 2,750 GB/s and the
/// kernel for all GPUs 2,600 GB/s at head dim 128, 2,170 and 2,510 GB/s at head dim 64.
inline constexpr int hopper_few_queries_head_dim = 128, hopper_few_queries_min_rows = 33;

/// Head dims with a backward kernel whose warpgroups divide the keys. Other head dims use the next larger
/// one. Head dims above the largest use kernels whose warpgroups divide the columns.
using HopperBackwardHeadDims = HeadDims<32, 64, 128>;
inline constexpr int hopper_backward_keys_max_head_dim = 128;
/// Upper bound on the columns of the dQ accumulators. `head_dim` is padded as for the other 16-bit kernels.
inline int padded_hopper_head_dim(int head_dim) {
    return head_dim > hopper_backward_keys_max_head_dim ? head_dim
                                                        : padded_head_dim(HopperBackwardHeadDims{}, head_dim);
}

/// Two consumer warpgroups take 64 keys each. Shared memory holds two row blocks, each with Q and dO, at the
/// same time.
struct HopperBackwardTiles {
    int rows;  ///< 64 or 128
    /// Whether P is kept in 16 bits only, so that registers are free for more rows.
    bool keeps_p_in_16_bits;
    /// Whether the dQ accumulators may exist only for the heads in flight (see hopper_ring_max_keys), if the
    /// addition order is not fixed and sequences are not packed.
    bool may_sum_in_ring;
    int d_q_stages;  ///< dQ row blocks in shared memory at the same time, 1 or 2
    static constexpr int keys = 128, consumers = 2;

    static constexpr int threads() { return 128 * (consumers + 1); }
    /// Shared-memory bytes: K, V and their gradients; Q and dO stages with their statistics; dS; barriers.
    constexpr int shared_bytes(int head_dim) const {
        const int kv = 2 * keys * head_dim, gradients = kv, row_stages = 2 * 2 * rows * (head_dim + 2),
                  d_s = 2 * rows * keys;
        return 2 * (kv + gradients + row_stages + d_s) + ring_bytes;
    }
    static constexpr int ring_bytes = 512;  ///< upper bound on the size of the barriers
    constexpr bool operator==(const HopperBackwardTiles&) const = default;
};

/// `applies_rules`: whether the kernel applies a formula, dropout or biases, which need registers.
constexpr HopperBackwardTiles hopper_backward_tiles(int head_dim, bool applies_rules) {
    // Each row block costs a barrier, so larger row blocks are better. But S, dP and, for a while, dQ take
    // rows / 2 registers each, and dK and dV take head_dim / 2 each: too many for 128 rows at head dim 64,
    // unless the row block's P is kept in 16 bits after the exponentials. In ms, causal, with 64 rows and
    // with 128: 1.13 and 1.02 for 64 x 12 heads at S 1,024, 2.05 and 1.82 for 4 x 32 at 4,096, 6.50 and 5.94
    // for 32 at 16,384 (bench/results/2026-11-25-backward-h100.md).
    // At head dim 128, P in 16 bits does not allow more rows, and took 1.65 ms, compared with 1.55 ms, for 4
    // x 16 heads at S 4,096. A dQ accumulator ring took 2.42 ms there, because its finishers take registers
    // from the consumers.
    const bool keeps_p_in_16_bits = head_dim > 32 && head_dim <= 64 && !applies_rules;
    return {.rows = head_dim <= 32 || keeps_p_in_16_bits ? 128 : 64,
            .keeps_p_in_16_bits = keeps_p_in_16_bits,
            .may_sum_in_ring = head_dim <= 64,
            .d_q_stages = keeps_p_in_16_bits ? 1 : 2};
}

/// Bias gradient tiles. Two consumer warpgroups take 64 rows each.
struct HopperBiasGradientTiles {
    static constexpr int rows = 128, keys = 128, consumers = 2;
    int stages;  ///< batches whose Q, dO, K and V are in shared memory at the same time

    static constexpr int threads() { return 128 * (consumers + 1); }
    /// Warps that load key biases. Each warp skips the other warps' stages: with more warps than stages, a
    /// warp could run two phases ahead of the consumers, where a barrier's parity does not stop it.
    constexpr int key_bias_warps() const { return stages < 3 ? stages : 3; }
    // See HopperForwardTiles.
    static constexpr int producer_registers = 40, consumer_registers = 232;
    /// Shared-memory bytes: the bias tile (sized for float32), Q/dO/K/V stages, LSE, D, key biases and
    /// barriers.
    constexpr int shared_bytes(int head_dim) const {
        return 4 * rows * keys + stages * (2 * 2 * (rows + keys) * head_dim + 4 * (2 * rows + keys)) +
               ring_bytes;
    }
    static constexpr int ring_bytes = 256;  ///< upper bound on the size of the barriers
};
constexpr HopperBiasGradientTiles hopper_bias_gradient_tiles(int head_dim) {
    return {.stages = head_dim <= 32 ? 4 : 2};
}

/// Bytes per row for Q, dO and the dQ accumulators, which all key blocks in a head access through the L2
/// cache.
constexpr std::int64_t hopper_backward_row_bytes(int qk_dim, int v_dim) {
    return std::int64_t{2} * (qk_dim + v_dim) + std::int64_t{4} * qk_dim;
}

/// Each of the two consumer warpgroups takes half the dK columns and half the dV columns.
struct HopperColumnsTiles {
    // Per thread, dK, dV and dQ take qk_dim / 4, v_dim / 4 and qk_dim / 4 registers for 64 keys and 64 rows:
    // at head dim 256, more keys do not fit. dS and P in shared memory leave no room for more rows.
    static constexpr int rows = 64, keys = 64, consumers = 2, stages = 2;

    static constexpr int threads() { return 128 * (consumers + 1); }
    /// Shared-memory bytes: K and V; Q and dO stages with their statistics; dS; P; barriers.
    static constexpr int shared_bytes(int qk_dim, int v_dim) {
        const int kv = keys * (qk_dim + v_dim), row_stages = stages * rows * (qk_dim + v_dim + 4),
                  d_s = stages * rows * keys, p = rows * keys;
        return 2 * (kv + row_stages + d_s + p) + ring_bytes;
    }
    static constexpr int ring_bytes = 512;  ///< upper bound on the size of the barriers
};

/// Whether a forward task is a pair of row blocks, counted from both ends of a head, or a single row block.
/// Under a causal mask, the first and the last row block together have as many keys as the second and the
/// last but one, and so on. Such pairs therefore keep all multiprocessors equally busy, if there are enough
/// pairs. Causal, with pairs and with single blocks: 785 and 480 at D 256; 661 and 565 at D 128, S 16,384;
/// 360 and 322 at D 64, S 2,048. Without a mask (`sees_all`) single blocks are equal, too, and pairs must not
/// take longer: 22 turns of 132 blocks instead of 21 took 4.63 ms instead of 4.48 at D 64, S 16,384.
constexpr bool hopper_forward_has_pairs(std::int64_t heads, std::int64_t row_blocks, std::int64_t processors,
                                        bool sees_all) {
    const std::int64_t pairs = heads * ((row_blocks + 1) / 2), blocks = heads * row_blocks;
    const auto turns = [&](std::int64_t tasks) { return (tasks + processors - 1) / processors; };
    return sees_all ? 2 * turns(pairs) <= turns(blocks) : pairs >= 2 * processors;
}

/// Whether the tasks of a forward pass see equally many keys, up to a block. Such tasks follow each other
/// head by head: sets of heads only let long tasks start first. Full, 16 x 16 heads at D 128, S 1,024: 0.255
/// ms, instead of 0.261 in sets of 48 heads.
constexpr bool hopper_forward_has_equal_tasks(const Mask& mask, std::int64_t row_blocks, bool has_pairs) {
    const bool is_whole_triangle = mask.left < 0 && mask.right == 0 && mask.offset >= 0 &&
                                   mask.queries + mask.offset <= mask.keys,
               sees_all = mask.left < 0 && mask.right < 0;
    return has_pairs ? row_blocks % 2 == 0 && (sees_all || is_whole_triangle) : sees_all;
}

/// Calls with more keys have dQ accumulators for all heads, not only for those in flight. Other kernels must
/// then clear and round the accumulators, which takes a larger part of the time the fewer keys there are. At
/// head dim 64, causal, with a ring and without: 260 and 242 at S 1,024, 334 and 298 at 2,048 (the ring with
/// additions by threads), 383 and 392 at 4,096 and 461 and 473 at 16,384. At 4,096 the ring is kept, because
/// it takes less memory.
inline constexpr std::int64_t hopper_ring_max_keys = 8192;

/// Extra slots in the dQ accumulator ring, beyond one head set. A task waits for all tasks from the head that
/// used its slot before. The last such task was started at least tasks_between tasks earlier, two per H100
/// multiprocessor, so it is usually complete. With one slot per head, the accumulators do not stay in the L2
/// cache, and the backward pass took 1,407 us instead of 975.
constexpr std::int64_t hopper_more_slots(std::int64_t set_heads, std::int64_t key_blocks) {
    constexpr std::int64_t tasks_between = 2 * hopper_processors;
    return std::max(set_heads, (tasks_between + key_blocks - 1) / key_blocks);
}

// Head sets: TaskOrder (common/task_order.cuh), for all kernels. The backward pass with a ring took 1,040 us
// with 12 MB sets and 975 us with 24 MB sets; 36 MB sets changed nothing.
// Short heads: enough_whole_heads (sm80/tiles.h).

}  // namespace gradtile::attention::cuda
