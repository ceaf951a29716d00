#pragma once
/// The launches of the backward pass.
#include <algorithm>

#include <gradtile/attention/cuda/16bit/backward.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {

/// A type, since nvcc does not launch kernels with parameters of class types.
template <int head_dim, int shared_limit>
struct Bits16BackwardPolicy {
    static constexpr Bits16BackwardTiles tiles = Bits16BackwardChoice<head_dim>::tiles(shared_limit);
    static constexpr int whole_head_rows = 0;
};
/// A thread block takes a whole head.
template <int head_dim, int shared_limit>
struct Bits16WholeHeadPolicy : Bits16BackwardPolicy<head_dim, shared_limit> {
    static constexpr int whole_head_rows = Bits16BackwardChoice<head_dim>::whole_head_rows(shared_limit);
};

/// Fewer heads leave processors idle unless their keys are shared out.
constexpr std::int64_t enough_whole_heads = 256;

/// Short heads, and many: one kernel that keeps dQ on chip, so that nothing is added to in global memory.
template <class T, int head_dim, class Policy>
void launch_whole_heads(Bits16BackwardParameters p, cudaStream_t stream) {
    using namespace gradtile::cuda;
    constexpr Bits16BackwardTiles tiles = Policy::tiles;
    static_assert(Policy::whole_head_rows % backward_row_padding == 0, "dQ has padded rows");
    constexpr int shared_bytes = tiles.shared_bytes(head_dim) + 4 * Policy::whole_head_rows * head_dim;
    p.d_q_sums = nullptr;
    p.turns = p.next_task = nullptr;
    const int batch_heads = p.batch_size * p.sizes.heads;
    launch_on(stream, device::prepare_backward_kernel<T>,
              static_cast<unsigned>(batch_heads * (p.padded_rows / device::prepared_rows)),
              Block{.threads = 256, .starts_early = true}, p, tiles, head_dim);
    p.order = device::TaskOrder(batch_heads, 1, 0);
    launch_on(stream, device::backward_kernel<T, head_dim, Policy>, static_cast<unsigned>(batch_heads),
              Block{static_cast<unsigned>(tiles.threads()), shared_bytes, /*starts_early=*/true}, p);
}

template <class T, int head_dim, class Policy>
void launch_backward_kernels(const Bits16BackwardParameters& p, cudaStream_t stream) {
    using namespace gradtile::cuda;
    constexpr Bits16BackwardTiles tiles = Policy::tiles;
    constexpr int shared_bytes = tiles.shared_bytes(head_dim);
    static_assert(shared_bytes * tiles.blocks_per_sm <= 227 * 1024);
    const std::int64_t batch_heads = static_cast<std::int64_t>(p.batch_size) * p.sizes.heads,
                       rows = batch_heads * p.padded_rows;
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
        const std::int64_t row_bytes = p.turns != nullptr ? 0
                                                          : 2 * (p.sizes.qk_dim + p.sizes.v_dim) +
                                                                std::int64_t{sizeof(float)} * head_dim;
        const std::int64_t batch_key_heads = batch_heads / p.sizes.group,
                           key_blocks = blocks(p.mask.keys, tiles.keys());
        Bits16BackwardParameters ordered = p;
        if (rows == 0) ordered.next_task = nullptr;  // nothing has set it to 0, and nobody waits
        ordered.order = device::TaskOrder(batch_key_heads, static_cast<int>(key_blocks),
                                          p.sizes.group * p.padded_rows * row_bytes);
        launch_on(stream, device::backward_kernel<T, head_dim, Policy>,
                  static_cast<unsigned>(batch_key_heads * key_blocks),
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
void launch_backward(const Bits16BackwardParameters& p, cudaStream_t stream) {
    visit_head_dim(
        Bits16HeadDims{}, std::max(p.sizes.qk_dim, p.sizes.v_dim), [&]<int head_dim>(HeadDim<head_dim>) {
            visit_shared_memory<Bits16BackwardChoice<head_dim>>(
                gradtile::cuda::shared_memory_of_a_block(), [&]<int limit>(SharedMemory<limit>) {
                    using Whole = Bits16WholeHeadPolicy<head_dim, limit>;
                    if constexpr (Whole::whole_head_rows > 0) {
                        const int longest = std::max(p.mask.queries, p.mask.keys);
                        if (p.mask.queries > 0 && p.mask.keys > 0 && longest <= Whole::whole_head_rows &&
                            p.sizes.group == 1 &&
                            std::int64_t{p.batch_size} * p.sizes.heads >= enough_whole_heads)
                            return launch_whole_heads<T, head_dim, Whole>(p, stream);
                    }
                    launch_backward_kernels<T, head_dim, Bits16BackwardPolicy<head_dim, limit>>(p, stream);
                });
        });
}

}  // namespace gradtile::attention::cuda
