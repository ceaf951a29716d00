#pragma once
/// The launches of the backward pass.
#include <algorithm>

#include <gradtile/core/cuda_check.h>
#include <gradtile/attention/flash_16bit_backward.cuh>

namespace gradtile::attention::cuda {

/// A type, since nvcc does not launch kernels with parameters of class types.
template <int head_dim, int shared_limit>
struct BackwardPolicy {
    static constexpr BackwardTiles tiles = Backward<head_dim>::tiles(shared_limit);
};

template <class T, int head_dim, class Policy>
void launch_backward_kernels(const BackwardParameters& p, cudaStream_t stream) {
    constexpr BackwardTiles tiles = Policy::tiles;
    constexpr int shared_bytes = tiles.shared_bytes(head_dim);
    static_assert(shared_bytes * tiles.blocks_per_sm <= 227 * 1024);
    const std::int64_t matrices = static_cast<std::int64_t>(p.batch) * p.heads,
                       rows = matrices * p.padded_rows;
    const auto blocks = [](std::int64_t work, std::int64_t per_block) {
        return static_cast<unsigned>((work + per_block - 1) / per_block);
    };
    if (rows > 0) {
        gradtile::cuda::cuda_check(cudaMemsetAsync(
            p.d_q_sums, 0, static_cast<std::size_t>(rows) * head_dim * sizeof(float), stream));
        device::prepare_backward_kernel<T><<<blocks(rows, 32), 256, 0, stream>>>(p, tiles);
        gradtile::cuda::cuda_check(cudaGetLastError());
    }
    if (p.mask.keys > 0) {
        const auto kernel = device::backward_kernel<T, head_dim, Policy>;
        gradtile::cuda::cuda_check(
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
        kernel<<<blocks(p.mask.keys, tiles.keys()) * static_cast<unsigned>(matrices / p.group),
                 tiles.threads(), shared_bytes, stream>>>(p);
        gradtile::cuda::cuda_check(cudaGetLastError());
    }
    if (rows > 0) {
        device::finish_d_q_kernel<T, head_dim><<<blocks(rows, 64), 128, 0, stream>>>(p);
        gradtile::cuda::cuda_check(cudaGetLastError());
    }
}

template <class T>
void launch_backward(const BackwardParameters& p, cudaStream_t stream) {
    visit_head_dim(std::max(p.qk_dim, p.v_dim), [&]<int head_dim>(HeadDim<head_dim>) {
        visit_shared_memory<Backward<head_dim>>(
            gradtile::cuda::shared_memory_of_a_block(), [&]<int limit>(SharedMemory<limit>) {
                launch_backward_kernels<T, head_dim, BackwardPolicy<head_dim, limit>>(p, stream);
            });
    });
}

}  // namespace gradtile::attention::cuda
