#pragma once
/// Adds the dQ parts that flash1's thread blocks sum at the same time.
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda::tiled {

/// x [B, S, H, D] = the sum over parts [count, B, S, H, D], which are contiguous, in part order. One thread
/// per element.
template <class A>
__global__ void sum_parts_kernel(device::TensorView<A> x, const A* parts, int count, std::int64_t elements,
                                 int rows, int heads, int columns) {
    const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= elements) return;
    A sum = 0;
    for (int part = 0; part < count; ++part) sum += parts[part * elements + i];
    const std::int64_t row_head = i / columns, row = row_head / heads;
    x.head(row / rows, row_head % heads).row(row % rows)[i % columns] = sum;
}

template <class A>
void launch_sum_parts(const Context& ctx, const Tensor& x, const Tensor& parts) {
    constexpr unsigned threads = 256;
    if (x.elements() == 0) return;
    gradtile::cuda::launch(
        ctx, sum_parts_kernel<A>, gradtile::cuda::blocks_for(x.elements(), threads), {.threads = threads},
        device::tensor_view<A>(x), static_cast<const A*>(parts.data<A>()), static_cast<int>(parts.size(0)),
        x.elements(), static_cast<int>(x.size(1)), static_cast<int>(x.size(2)), static_cast<int>(x.size(3)));
}

}  // namespace gradtile::attention::cuda::tiled
