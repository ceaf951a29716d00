#pragma once
/// INTERNAL. Task order for the Hopper kernels. The numbers are the policy's (tiles.h), unless a
/// ForcedKernelChoice replaces them.
#include <gradtile/attention/cuda/hopper/tiles.h>
#include <gradtile/attention/internal/kernel_choice.h>
#include <gradtile/attention/cuda/device/task_order.cuh>

namespace gradtile::attention::cuda {

/// Replaces the number of heads per set if a forced choice gives one.
inline void force_set_heads(device::TaskOrder& order) {
    if (const auto heads = forced_kernel_choice().set_heads)
        order.cached_heads = std::clamp(*heads, 1, std::max(1, order.batch_heads));
}

/// Task order with balanced sets, for `parts` tasks per head.
inline device::TaskOrder hopper_task_order(std::int64_t heads, int parts, std::int64_t bytes_per_head) {
    device::TaskOrder order(heads, parts, bytes_per_head);
    order.balance_sets(hopper_processors);
    force_set_heads(order);
    return order;
}

struct HopperForwardSchedule {
    int row_blocks;  ///< row blocks per head
    bool pairs;      ///< a task is a pair of row blocks, counted from both ends; else one row block
    device::TaskOrder order;
};

/// The schedule for a dense call. `block_rows`: rows per row block.
inline HopperForwardSchedule hopper_forward_schedule(std::int64_t heads, int rows, int block_rows,
                                                     std::int64_t processors, std::int64_t bytes_per_head) {
    HopperForwardSchedule schedule{
        .row_blocks = (rows + block_rows - 1) / block_rows, .pairs = false, .order = {}};
    schedule.pairs = forced_kernel_choice().pairs.value_or(
        hopper_forward_has_pairs(heads, schedule.row_blocks, processors));
    schedule.order = device::TaskOrder(
        heads, schedule.pairs ? (schedule.row_blocks + 1) / 2 : schedule.row_blocks, bytes_per_head);
    force_set_heads(schedule.order);
    return schedule;
}

/// K and V bytes per query head.
constexpr std::int64_t hopper_forward_head_bytes(std::int64_t keys, int qk_dim, int v_dim, int group) {
    return 2 * keys * (qk_dim + v_dim) / group;
}

}  // namespace gradtile::attention::cuda
