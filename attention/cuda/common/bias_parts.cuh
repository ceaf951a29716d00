#pragma once
/// A bias gradient whose sum is divided into parts, and the kernel that adds the parts.
#include <gradtile/attention/cuda/common/parameters.h>
#include <gradtile/attention/cuda/common/bias_sums.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {

namespace device {

/// One part's sums, as a gradient of the same shape.
__device__ inline BiasGradient sums_of_part(const BiasGradient& g, const BiasGradientParts& parts, int part,
                                            const DeviceMask& mask) {
    BiasGradient sums = g;
    const std::int64_t per_head = std::int64_t{mask.queries} * mask.keys;
    sums.data = reinterpret_cast<std::byte*>(parts.sums + part * g.batches * g.heads * per_head);
    sums.dtype = DType::f32;
    sums.strides[0] = g.heads * per_head;
    sums.strides[1] = per_head;
    sums.strides[2] = mask.keys;
    sums.strides[3] = 1;
    return sums;
}

/// Adds the parts for each gradient element, one thread per element.
template <int threads>
__global__ void __launch_bounds__(threads)
    add_bias_gradient_parts_kernel(const __grid_constant__ BiasGradient g,
                                   const __grid_constant__ BiasGradientParts parts, int rows, int keys) {
    gradtile::cuda::device::await_predecessor();
    const std::int64_t per_head = std::int64_t{rows} * keys, all = g.batches * g.heads * per_head,
                       index = std::int64_t{blockIdx.x} * threads + threadIdx.x;
    if (index >= all) return;
    float sum = 0;
    for (int part = 0; part < parts.count; ++part) sum += parts.sums[part * all + index];
    const int batch_head = static_cast<int>(index / per_head);
    const std::int64_t in_head = index % per_head;
    store_bias_gradient(g, batch_head / g.heads, batch_head % g.heads, in_head / keys, in_head % keys, sum);
}

}  // namespace device

/// Enqueues the kernel that adds the parts, if there are several.
inline void add_bias_gradient_parts(const BiasGradient& gradient, const BiasGradientParts& parts,
                                    const device::DeviceMask& mask, cudaStream_t stream) {
    if (parts.count == 1) return;
    const std::int64_t elements = std::int64_t{gradient.batches} * gradient.heads * mask.queries * mask.keys;
    constexpr int threads = 256;
    gradtile::cuda::launch_on(stream, device::add_bias_gradient_parts_kernel<threads>,
                              static_cast<unsigned>((elements + threads - 1) / threads),
                              {.threads = threads, .starts_early = true}, gradient, parts, mask.queries,
                              mask.keys);
}

}  // namespace gradtile::attention::cuda
