#pragma once
/// INTERNAL. Heads per TaskOrder set for the Hopper kernels.
#include <gradtile/attention/cuda/sm90/tiles.h>
#include <gradtile/attention/cuda/common/task_order.cuh>

namespace gradtile::attention::cuda {

/// With balanced sets, for `parts` tasks per head.
inline int hopper_set_heads(std::int64_t heads, std::int64_t parts, std::int64_t bytes_per_head) {
    device::TaskOrder order(heads, static_cast<int>(parts), bytes_per_head);
    order.balance_sets(hopper_processors);
    return order.cached_heads;
}

/// K and V bytes per query head.
constexpr std::int64_t hopper_forward_head_bytes(std::int64_t keys, int qk_dim, int v_dim,
                                                 std::int64_t group) {
    return 2 * keys * (qk_dim + v_dim) / group;
}

}  // namespace gradtile::attention::cuda
