#pragma once
/// INTERNAL. The order of the tasks of the Hopper kernels. The numbers are the policy's (tiles.h), unless a
/// ForcedKernelChoice replaces them.
#include <gradtile/attention/cuda/hopper/tiles.h>
#include <gradtile/attention/internal/kernel_choice.h>
#include <gradtile/attention/cuda/device/task_order.cuh>

namespace gradtile::attention::cuda {

/// Replaces the heads of a set by those of a forced choice.
inline void force_set_heads(device::TaskOrder& order) {
    if (const auto heads = forced_kernel_choice().set_heads)
        order.cached_heads = std::clamp(*heads, 1, std::max(1, order.batch_heads));
}

/// The order of tasks of which every head has `parts`, if sets are to be balanced.
inline device::TaskOrder hopper_task_order(std::int64_t heads, int parts, std::int64_t bytes_per_head) {
    device::TaskOrder order(heads, parts, bytes_per_head);
    order.balance_sets(hopper_processors);
    force_set_heads(order);
    return order;
}

struct HopperForwardSchedule {
    int row_blocks;  ///< the number of blocks of rows of a head
    bool pairs;      ///< a task is a pair of blocks of rows, counted from both ends; else one block
    device::TaskOrder order;
};

/// The schedule of a dense call. `block_rows` is the rows of a block.
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

/// Bytes of K and V per query head.
constexpr std::int64_t hopper_forward_head_bytes(std::int64_t keys, int qk_dim, int v_dim, int group) {
    return 2 * keys * (qk_dim + v_dim) / group;
}

}  // namespace gradtile::attention::cuda
