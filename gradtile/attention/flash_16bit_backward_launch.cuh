#pragma once
/// Which tiles the backward pass uses, and its launches.
#include <algorithm>

#include <gradtile/core/cuda_check.h>
#include <gradtile/attention/flash_16bit_backward.cuh>

namespace gradtile::attention::cuda {

// Figures behind the choices: bench/results/2026-11-21-h200-attention.md.
constexpr BackwardTiles backward_tiles(int head_dim) {
    // A gradient of 32 keys takes head_dim registers a lane, S or dP half the rows. Two blocks a
    // multiprocessor where both are small; long blocks of rows where they fit, since each costs a barrier.
    if (head_dim <= 32)
        return {.rows = 64,
                .pairs = 4,
                .pair_keys = 32,
                .d_q_row_warps = 4,
                .blocks_per_sm = 2,
                .unrolled = 1,
                .d_q_unrolled = 4};
    if (head_dim <= 64)
        return {.rows = 128,
                .pairs = 4,
                .pair_keys = 32,
                .d_q_row_warps = 4,
                .blocks_per_sm = 1,
                .unrolled = 4,
                .d_q_unrolled = 8};
    if (head_dim <= 96)
        return {.rows = 64,
                .pairs = 4,
                .pair_keys = 32,
                .d_q_row_warps = 4,
                .blocks_per_sm = 1,
                .unrolled = 6,
                .d_q_unrolled = 8};
    if (head_dim <= 128)
        return {.rows = 64,
                .pairs = 4,
                .pair_keys = 32,
                .d_q_row_warps = 2,
                .blocks_per_sm = 1,
                .unrolled = 8,
                .d_q_unrolled = 4};
    // The gradient of 32 keys would take all the registers there are.
    return {.rows = 64,
            .pairs = 4,
            .pair_keys = 16,
            .d_q_row_warps = 2,
            .blocks_per_sm = 1,
            .unrolled = 12,
            .d_q_unrolled = 4};
}

template <int head_dim>
struct BackwardPolicy {
    static constexpr BackwardTiles tiles = backward_tiles(head_dim);
};

template <class T, int head_dim, class Policy = BackwardPolicy<head_dim>>
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
    visit_head_dim(std::max(p.qk_dim, p.v_dim),
                   [&]<int head_dim>(HeadDim<head_dim>) { launch_backward_kernels<T, head_dim>(p, stream); });
}

}  // namespace gradtile::attention::cuda
