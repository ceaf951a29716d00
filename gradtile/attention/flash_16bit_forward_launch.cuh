#pragma once
/// Which tiles the forward pass uses, and its launch.
#include <algorithm>

#include <gradtile/core/cuda_check.h>
#include <gradtile/attention/flash_16bit_forward.cuh>

namespace gradtile::attention::cuda {

// Figures behind the choices: bench/results/2026-11-21-h200-attention.md.
constexpr ForwardTiles forward_tiles(int head_dim) {
    // 32 rows a warp while O (head_dim registers a lane) and S (half the keys) leave two blocks room on a
    // multiprocessor; then while one's warps take exponentials the other's keep the tensor cores busy.
    if (head_dim <= 32)
        return {.warps = 4, .warp_rows = 32, .keys = 64, .stages = 2, .blocks_per_sm = 3, .unrolled = 2};
    if (head_dim <= 64)
        return {.warps = 4, .warp_rows = 32, .keys = 128, .stages = 2, .blocks_per_sm = 2, .unrolled = 4};
    if (head_dim <= 128)
        return {.warps = 4, .warp_rows = 32, .keys = 64, .stages = 2, .blocks_per_sm = 2, .unrolled = 4};
    return {.warps = 8, .warp_rows = 16, .keys = 64, .stages = 2, .blocks_per_sm = 1, .unrolled = 16};
}

template <int head_dim>
struct ForwardPolicy {
    static constexpr ForwardTiles tiles = forward_tiles(head_dim);
};

template <class T, int head_dim, class Policy = ForwardPolicy<head_dim>>
void launch_forward_kernel(const ForwardParameters& p, cudaStream_t stream) {
    constexpr ForwardTiles tiles = Policy::tiles;
    constexpr int shared_bytes = tiles.shared_bytes(head_dim);
    static_assert(shared_bytes * tiles.blocks_per_sm <= 227 * 1024);
    const auto kernel = device::forward_kernel<T, head_dim, Policy>;
    gradtile::cuda::cuda_check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    const int row_blocks = (p.mask.queries + tiles.rows() - 1) / tiles.rows();
    const auto blocks = static_cast<unsigned>(static_cast<std::int64_t>(p.batch) * p.heads * row_blocks);
    kernel<<<blocks, tiles.threads(), shared_bytes, stream>>>(p);
    gradtile::cuda::cuda_check(cudaGetLastError());
}

template <class T>
void launch_forward(const ForwardParameters& p, cudaStream_t stream) {
    visit_head_dim(std::max(p.qk_dim, p.v_dim),
                   [&]<int head_dim>(HeadDim<head_dim>) { launch_forward_kernel<T, head_dim>(p, stream); });
}

}  // namespace gradtile::attention::cuda
