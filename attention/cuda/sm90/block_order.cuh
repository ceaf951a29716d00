#pragma once
/// The order in which the Hopper kernels compute a call's blocks if it has row ranges: by decreasing number
/// of visible blocks. Long tasks start first, so that short ones fill the end of the run. The ranges are in
/// device memory, so a kernel makes the order, after the kernel that reads the ranges (row_ranges.h).
#include <gradtile/attention/cuda/common/row_ranges.h>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/attention/cuda/common/mask.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {

enum class OrderedBlocks : std::uint8_t { rows, keys };

namespace device {

constexpr int order_threads = 256;
/// More blocks keep their order: each multiprocessor then has so many tasks that the last ones do not matter.
constexpr int max_ordered_blocks = 8191;

/// Replaces x by the sums x[0] + ... + x[i]. One warp calls this.
__device__ __forceinline__ void sum_before(int* x, int count) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    int total = 0;
    for (int first = 0; first < count; first += 32) {
        int sum = first + lane < count ? x[first + lane] : 0;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const int other = __shfl_up_sync(~0u, sum, distance);
            if (lane >= distance) sum += other;
        }
        if (first + lane < count) x[first + lane] = total + sum;
        total += __shfl_sync(~0u, sum, 31);
    }
}

/// Writes orders of row blocks with block_rows rows, or of key blocks that such row blocks see. A key block
/// has one order for `group` heads that have ranges of their own, because one task computes it for all of
/// them. Each thread block counts an order's work and places order_threads of its blocks.
template <int block_rows, OrderedBlocks ordered>
__global__ void __launch_bounds__(order_threads)
    order_blocks_kernel(DeviceRowRanges ranges, DeviceMask mask, int group) {
    gradtile::cuda::device::await_predecessor();
    __shared__ int work[max_ordered_blocks + 1];
    const BlockOrder& order = ranges.order;
    const int parts = (order.count + order_threads - 1) / order_threads,
              index = static_cast<int>(blockIdx.x) / parts,
              part = static_cast<int>(blockIdx.x) - index * parts, thread = static_cast<int>(threadIdx.x),
              own = part * order_threads + thread,
              key_blocks = (mask.keys + ranges.block_keys - 1) / ranges.block_keys;
    int* const places = order.taken + 1 + std::int64_t{index} * order.count;
    if (blockIdx.x == 0 && thread == 0) *order.taken = 0;
    if (order.count > max_ordered_blocks) {
        if (own < order.count) places[own] = own;
        return;
    }
    const auto rows_that_see = [&](int head, int block) {
        const int key = block * ranges.block_keys, last_key = min(key + ranges.block_keys, mask.keys) - 1;
        return RowRuns<block_rows>::of(
            ranges.blocks[(std::int64_t{index} * group + head) * ranges.block_count + block],
            {mask.first_row(key), mask.end_row(last_key)});
    };
    if constexpr (ordered == OrderedBlocks::rows) {
        for (int i = thread; i <= order.count; i += order_threads) work[i] = 0;
        __syncthreads();
        for (int block = thread; block < key_blocks; block += order_threads)
            rows_that_see(0, block).for_each_change(
                [&](int at, int change) { atomicAdd(work + at, change); });
        __syncthreads();
        if (thread < 32) sum_before(work, order.count);
    } else {
        for (int block = thread; block < key_blocks; block += order_threads) {
            work[block] = 0;
            for (int head = 0; head < group; ++head) work[block] += rows_that_see(head, block).blocks();
        }
    }
    __syncthreads();
    if (own < order.count) places[rank_by_work(work, order.count, own)] = own;
}

}  // namespace device

/// Enqueues the kernel that makes the orders for `batches` batches. Completes ranges.order.
template <int block_rows, OrderedBlocks ordered>
void launch_block_order(const Context& ctx, DeviceRowRanges& ranges, const device::DeviceMask& mask,
                        int batches, const device::Sizes& sizes) {
    constexpr bool orders_rows = ordered == OrderedBlocks::rows;
    const int heads = ranges.head_step == 0 ? 1 : sizes.heads,
              group = orders_rows || ranges.head_step == 0 ? 1 : sizes.group,
              tokens = orders_rows ? mask.queries : mask.keys,
              block_tokens = orders_rows ? block_rows : ranges.block_keys;
    BlockOrder& order = ranges.order;
    order.count = (tokens + block_tokens - 1) / block_tokens;
    order.batch_step = ranges.batch_step / group;
    order.head_step = ranges.head_step;
    const std::int64_t orders = std::int64_t{ranges.batch_step == 0 ? 1 : batches} * (heads / group);
    gradtile::cuda::launch(
        ctx, device::order_blocks_kernel<block_rows, ordered>,
        gradtile::cuda::blocks_for(orders * ceil_div(order.count, device::order_threads), 1),
        {.threads = device::order_threads, .starts_early = true}, ranges, mask, group);
}

}  // namespace gradtile::attention::cuda
