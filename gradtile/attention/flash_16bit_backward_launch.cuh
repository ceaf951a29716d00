#pragma once
/// The launches of the backward pass.
#include <algorithm>

#include <gradtile/attention/flash_16bit_backward.cuh>
#include <gradtile/core/device/launch.cuh>

namespace gradtile::attention::cuda {

/// A type, since nvcc does not launch kernels with parameters of class types.
template <int head_dim, int shared_limit>
struct BackwardPolicy {
    static constexpr BackwardTiles tiles = Backward<head_dim>::tiles(shared_limit);
};

template <class T, int head_dim, class Policy>
void launch_backward_kernels(const BackwardParameters& p, cudaStream_t stream) {
    using namespace gradtile::cuda;
    constexpr BackwardTiles tiles = Policy::tiles;
    constexpr int shared_bytes = tiles.shared_bytes(head_dim);
    static_assert(shared_bytes * tiles.blocks_per_sm <= 227 * 1024);
    const std::int64_t matrices = static_cast<std::int64_t>(p.batch) * p.heads,
                       rows = matrices * p.padded_rows;
    const auto blocks = [](std::int64_t work, std::int64_t per_block) {
        return static_cast<unsigned>((work + per_block - 1) / per_block);
    };
    if (rows > 0) {
        static_assert(backward_row_padding % device::prepared_rows == 0);
        launch_on(stream, device::prepare_backward_kernel<T>, blocks(rows, device::prepared_rows),
                  Block{.threads = 256, .starts_early = true}, p, tiles, head_dim);
    }
    if (p.mask.keys > 0) {
        // Of a head's rows: Q and dO, which every block of keys reads, and the float32 sums it adds to. Where
        // that goes in turns, blocks that run together had better add to different heads: one group of all.
        const std::int64_t row_bytes =
            p.turns != nullptr ? 0 : 2 * (p.qk_dim + p.v_dim) + std::int64_t{sizeof(float)} * head_dim;
        const std::int64_t key_matrices = matrices / p.group, key_blocks = blocks(p.mask.keys, tiles.keys());
        BackwardParameters ordered = p;
        ordered.order = device::TaskOrder(key_matrices, static_cast<int>(key_blocks),
                                          p.group * p.padded_rows * row_bytes);
        launch_on(stream, device::backward_kernel<T, head_dim, Policy>,
                  static_cast<unsigned>(key_matrices * key_blocks),
                  Block{static_cast<unsigned>(tiles.threads()), shared_bytes, /*starts_early=*/true},
                  ordered);
    }
    if (rows > 0) {
        static_assert(backward_row_padding % device::finished_rows == 0);
        launch_on(stream, device::finish_d_q_kernel<T, head_dim>, blocks(rows, device::finished_rows),
                  Block{.threads = 128, .starts_early = true}, p);
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
