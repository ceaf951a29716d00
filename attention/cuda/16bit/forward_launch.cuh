#pragma once
/// The launch of the forward pass.
#include <algorithm>

#include <gradtile/attention/cuda/16bit/forward.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {

/// A type, since nvcc does not launch kernels with parameters of class types.
template <int head_dim, int shared_limit>
struct Bits16ForwardPolicy {
    static constexpr Bits16ForwardTiles tiles = Bits16ForwardChoice<head_dim>::tiles(shared_limit);
};

template <class T, int head_dim, class Policy>
void launch_forward_kernel(const Bits16ForwardParameters& p, cudaStream_t stream) {
    constexpr Bits16ForwardTiles tiles = Policy::tiles;
    constexpr int shared_bytes = tiles.shared_bytes(head_dim);
    static_assert(shared_bytes * tiles.blocks_per_sm <= 227 * 1024);
    const int row_blocks = (p.mask.queries + tiles.rows() - 1) / tiles.rows();
    const auto blocks =
        static_cast<unsigned>(static_cast<std::int64_t>(p.batch_size) * p.sizes.heads * row_blocks);
    gradtile::cuda::launch_on(stream, device::forward_kernel<T, head_dim, Policy>, blocks,
                              {static_cast<unsigned>(tiles.threads()), shared_bytes, /*starts_early=*/true},
                              p);
}

template <class T>
void launch_forward(const Bits16ForwardParameters& p, cudaStream_t stream) {
    visit_head_dim(
        Bits16HeadDims{}, std::max(p.sizes.qk_dim, p.sizes.v_dim), [&]<int head_dim>(HeadDim<head_dim>) {
            visit_shared_memory<Bits16ForwardChoice<head_dim>>(
                gradtile::cuda::shared_memory_of_a_block(), [&]<int limit>(SharedMemory<limit>) {
                    launch_forward_kernel<T, head_dim, Bits16ForwardPolicy<head_dim, limit>>(p, stream);
                });
        });
}

}  // namespace gradtile::attention::cuda
