#pragma once
/// The second stage of a sum over many rows: adds the partial sums from a kernel's blocks in a fixed order.
#include <array>

#include <gradtile/core/parameter_store.h>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::cuda {
namespace device {

constexpr int partial_columns = 32;  // columns per block
constexpr int partial_lanes = 32;    // threads per column

/// Writes or adds the sum over b of partials[b, d, c] to totals[d][c]; d is blockIdx.y.
template <class S, int destinations>
struct PartialSums {
    S* totals[destinations];
    bool accumulate[destinations];
    const S* partials;
    std::int64_t blocks, columns;
};

template <class S, int destinations>
__global__ void __launch_bounds__(partial_columns* partial_lanes)
    add_partials_kernel(const PartialSums<S, destinations> sums) {
    __shared__ S shared[partial_lanes][partial_columns + 1];
    const int x = threadIdx.x % partial_columns, y = threadIdx.x / partial_columns;
    const std::int64_t column = blockIdx.x * std::int64_t{partial_columns} + x;
    const std::int64_t step = destinations * sums.columns;
    await_predecessor();
    S sum = 0;
    if (column < sums.columns) {
        const S* from = sums.partials + blockIdx.y * sums.columns + column;
#pragma unroll 8
        for (std::int64_t block = y; block < sums.blocks; block += partial_lanes) sum += from[block * step];
    }
    shared[y][x] = sum;
    __syncthreads();
    if (y != 0 || column >= sums.columns) return;
    S total = 0;
#pragma unroll
    for (int lane = 0; lane < partial_lanes; ++lane) total += shared[lane][x];
    S* const sum_of_all = sums.totals[blockIdx.y] + column;
    *sum_of_all = sums.accumulate[blockIdx.y] ? *sum_of_all + total : total;
}

}  // namespace device

/// Sums partials [blocks, destinations, columns] over the blocks, and writes the sums to totals[d] [columns]
/// or adds them. Only the last total may be undefined.
template <class S, int destinations>
void add_partials(const Context& ctx, const std::array<GradientTarget, destinations>& totals,
                  const S* partials, std::int64_t blocks) {
    device::PartialSums<S, destinations> sums{
        .partials = partials, .blocks = blocks, .columns = totals[0].grad.elements()};
    unsigned defined = 0;
    for (const GradientTarget& total : totals) {
        if (!total.grad.defined()) break;
        sums.totals[defined] = total.grad.data<S>();
        sums.accumulate[defined++] = total.accumulates();
    }
    dim3 grid = blocks_for(sums.columns, device::partial_columns);
    grid.y = defined;
    launch(ctx, device::add_partials_kernel<S, destinations>, grid,
           Block{.threads = device::partial_columns * device::partial_lanes, .starts_early = true}, sums);
}

}  // namespace gradtile::cuda
