#pragma once
/// FlashAttention-2 backward on 16-bit tensor cores (Dao 2023, algorithm 2). Each thread block takes a key
/// block and loops over Q and dO row blocks.
///
/// S^T = K Q^T and dP^T = V dO^T have keys as rows, so the P^T and dS^T accumulators are already the left
/// operands of dV = P^T dO and dK = dS^T Q. The work for dV and for dK has the same form, two tile products
/// each. It is therefore divided between two warps that share their keys: the first warp computes S^T, P^T
/// and dV, the second warp dP^T, dS^T and dK. The first warp passes P^T to the second through shared memory.
/// So a warp accumulates one gradient instead of two, registers allow twice as many keys per warp, and each
/// fragment that ldmatrix loads is used in two products. The second warp replaces P^T in shared memory by
/// dS^T. All warps read dS^T for dQ += dS K one row block later, so that they do not wait for its
/// computation. dQ is summed in float32 in global memory.
#include <algorithm>

#include <gradtile/attention/cuda/sm80/launch.h>
#include <gradtile/attention/cuda/sm80/tiles.h>
#include <gradtile/attention/cuda/common/backward_rows.cuh>
#include <gradtile/attention/cuda/common/turns.cuh>
#include <gradtile/attention/cuda/sm80/backward_shared.cuh>
#include <gradtile/attention/cuda/sm80/key_block.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {

namespace device {

template <class T, int head_dim, class Policy>
__device__ __forceinline__ void differentiate_keys(const Bits16BackwardParameters& p, unsigned char* shared,
                                                   const BlockSequence& sequence, int key_head,
                                                   int key_block) {
    __shared__ RarelyUsed kept;
    __shared__ RulesOfHeads<Policy::rule != RuleKind::none> rules;
    KeyBlock<T, head_dim, Policy>(p, shared, kept, rules, sequence, key_head, key_block).differentiate();
}

/// Policy::tiles is a Bits16BackwardTiles. Policy is a type, because nvcc does not launch kernels that have
/// class-type template parameters.
template <class T, int head_dim, class Policy>
__global__ void __launch_bounds__(Policy::tiles.threads(), Policy::tiles.blocks_per_sm)
    backward_kernel(const __grid_constant__ Bits16BackwardParameters p) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ BlockSequence shared_sequence;
    // The first key blocks start first, because under a causal mask they have the most work: most rows see
    // these keys. TaskOrder processes the heads in sets whose tensors fit the L2 cache.
    //
    // This wait must precede take_task(), because the previous kernel sets the counter to 0.
    gradtile::cuda::device::await_predecessor();
    const int index = p.next_task != nullptr ? take_task(p.next_task, shared) : static_cast<int>(blockIdx.x);
    const int key_heads = p.sizes.heads / p.sizes.group;
    if (Policy::may_be_packed && p.packed) {
        // If blocks add to dQ in turns, blocks that run at the same time should add to different heads.
        const int key_head = p.turns != nullptr ? index % key_heads : index / p.key_tasks.count;
        const PackedTask task =
            p.key_tasks.first[p.turns != nullptr ? index / key_heads : index % p.key_tasks.count];
        if (task.sequence < 0) return;
        if (threadIdx.x == 0) shared_sequence = BlockSequence::from_task(p.mask, p.packed, task);
        __syncthreads();
        return differentiate_keys<T, head_dim, Policy>(p, shared, shared_sequence, key_head, task.block);
    }
    const TaskOrder::Task task = p.order(index);
    const auto sequence = BlockSequence::from_batch(p.mask, p.first_batch + task.batch_head / key_heads);
    const int key_head = task.batch_head % key_heads;
    if constexpr (Policy::whole_head_rows == 0) {
        differentiate_keys<T, head_dim, Policy>(p, shared, sequence, key_head, task.part);
    } else {
        constexpr Bits16BackwardTiles tiles = Policy::tiles;
        using Shared = Bits16BackwardShared<head_dim, Policy>;
        for (int i = static_cast<int>(threadIdx.x); i < p.padded_rows * head_dim / 4; i += tiles.threads())
            reinterpret_cast<float4*>(shared + Shared::d_q)[i] = float4{};
        for (int key_block = 0; key_block * tiles.keys() < p.mask.keys; ++key_block) {
            differentiate_keys<T, head_dim, Policy>(p, shared, sequence, key_head, key_block);
            __syncthreads();  // all warps have finished with the memory of K and V, through which gradients
                              // are stored; the additions to dQ are complete
        }
        const DqSums sums{reinterpret_cast<float*>(shared + Shared::d_q), Policy::whole_head_rows};
        const std::uint32_t warp_rows =
            shared_address(shared) + Shared::row_stages + warp_index() * 16 * Shared::RowTile::row_bytes;
        for (int row = warp_index() * 16; row < p.mask.queries; row += tiles.warps() * 16) {
            finish_d_q<T, head_dim, typename Shared::RowTile>(p, sums, 0, sequence, key_head, row, warp_rows);
            __syncwarp();
        }
    }
}

}  // namespace device

/// Passes the tiles as a type, because nvcc does not launch kernels that have class-type template parameters.
template <class Choice, int shared_limit, RuleKind rule_, bool may_be_packed_>
struct Bits16BackwardPolicy {
    static constexpr Bits16BackwardTiles tiles = Choice::tiles(shared_limit);
    static constexpr int whole_head_rows = 0;
    static constexpr RuleKind rule = rule_;
    static constexpr bool may_be_packed = may_be_packed_;  ///< whether the call may have packed sequences
};
/// The policy for kernels whose thread blocks process whole heads.
template <int head_dim, int shared_limit>
struct Bits16WholeHeadPolicy
    : Bits16BackwardPolicy<Bits16BackwardChoice<head_dim>, shared_limit, RuleKind::none, false> {
    static constexpr int whole_head_rows = Bits16BackwardChoice<head_dim>::whole_head_rows(shared_limit);
};

constexpr TurnTiles turn_tiles(const Bits16BackwardTiles& tiles) {
    return {.rows = tiles.rows, .pairs = tiles.pairs, .pair_keys = tiles.pair_keys};
}

/// For many short heads: launches one kernel that keeps dQ in shared memory, so that no accumulators in
/// global memory are needed.
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
              Block{.threads = 256, .starts_early = true}, p, turn_tiles(tiles), head_dim);
    p.order = device::TaskOrder(batch_heads, 1, 0);
    launch_on(stream, device::backward_kernel<T, head_dim, Policy>, static_cast<unsigned>(batch_heads),
              Block{static_cast<unsigned>(tiles.threads()), shared_bytes, /*starts_early=*/true}, p);
}

template <class T, int head_dim, class Policy>
void launch_backward_kernels(Bits16BackwardParameters p, cudaStream_t stream) {
    using namespace gradtile::cuda;
    constexpr Bits16BackwardTiles tiles = Policy::tiles;
    constexpr int shared_bytes = tiles.shared_bytes(head_dim);
    static_assert(shared_bytes * tiles.blocks_per_sm <= 227 * 1024);
    std::int64_t padded_rows = p.padded_rows, key_blocks = (p.mask.keys + tiles.keys() - 1) / tiles.keys();
    if (p.packed) {
        p.padded_tasks = make_packed_tasks(stream, p.packed, PackedOrder::last_rows_first,
                                           backward_row_padding, p.padded_tasks.first);
        p.key_tasks = make_packed_tasks(stream, p.packed, PackedOrder::first_keys_first, tiles.keys(),
                                        p.key_tasks.first);
        padded_rows = std::int64_t{p.padded_tasks.count} * backward_row_padding;
        key_blocks = p.key_tasks.count;
    }
    const std::int64_t batch_heads = static_cast<std::int64_t>(p.batch_size) * p.sizes.heads,
                       rows = p.mask.queries > 0 ? batch_heads * padded_rows : 0;
    const auto blocks = [](std::int64_t work, std::int64_t per_block) {
        return static_cast<unsigned>((work + per_block - 1) / per_block);
    };
    if (rows > 0) {
        static_assert(backward_row_padding % device::prepared_rows == 0);
        launch_on(stream, device::prepare_backward_kernel<T>, blocks(rows, device::prepared_rows),
                  Block{.threads = 256, .starts_early = true}, p, turn_tiles(tiles), head_dim);
    }
    if (p.mask.keys > 0) {
        // Bytes per row of a head that should stay in the L2 cache: Q and dO, which every key block reads,
        // and the float32 dQ accumulators, to which every key block adds. If key blocks add in turns,
        // row_bytes is 0, which puts all heads into one TaskOrder set, so that key blocks that run at the
        // same time add to different heads.
        const std::int64_t row_bytes = p.turns != nullptr ? 0
                                                          : 2 * (p.sizes.qk_dim + p.sizes.v_dim) +
                                                                std::int64_t{sizeof(float)} * head_dim;
        const std::int64_t batch_key_heads = batch_heads / p.sizes.group;
        Bits16BackwardParameters ordered = p;
        if (rows == 0)
            ordered.next_task =
                nullptr;  // without rows no kernel has set the counter to 0, and no block waits
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
void launch_backward(const Bits16BackwardParameters& p, const FlashPlan& plan, cudaStream_t stream) {
    visit_head_dim(
        Bits16HeadDims{}, std::max(p.sizes.qk_dim, p.sizes.v_dim), [&]<int head_dim>(HeadDim<head_dim>) {
            const int shared_bytes = plan.tiles.shared_limit;
            const auto launch_rule = [&]<class Choice, RuleKind rule, bool may_be_packed>() {
                visit_shared_memory<Choice>(shared_bytes, [&]<int limit>(SharedMemory<limit>) {
                    using Policy = Bits16BackwardPolicy<Choice, limit, rule, may_be_packed>;
                    launch_backward_kernels<T, head_dim, Policy>(p, stream);
                });
            };
            if constexpr (has_kernels(RuleKind::dropout, head_dim)) {
                using Choice = Bits16DropoutBackwardChoice<head_dim>;
                if (p.rule == RuleKind::dropout)
                    return launch_rule.template operator()<Choice, RuleKind::dropout, false>();
            }
            if constexpr (has_kernels(RuleKind::pair_bias, head_dim)) {
                using Choice = Bits16PairBiasBackwardChoice<head_dim>;
                if (p.rule == RuleKind::pair_bias)
                    return launch_rule.template operator()<Choice, RuleKind::pair_bias, false>();
            }
            if (p.rule != RuleKind::none)
                return launch_rule
                    .template operator()<Bits16RuleBackwardChoice<head_dim>, RuleKind::any, true>();
            using Choice = Bits16BackwardChoice<head_dim>;
            visit_shared_memory<Choice>(shared_bytes, [&]<int limit>(SharedMemory<limit>) {
                if (p.packed) {
                    using Policy = Bits16BackwardPolicy<Choice, limit, RuleKind::none, true>;
                    return launch_backward_kernels<T, head_dim, Policy>(p, stream);
                }
                using Whole = Bits16WholeHeadPolicy<head_dim, limit>;
                if constexpr (Whole::whole_head_rows > 0) {
                    if (plan.schedule.d_q_addition == DqAddition::in_shared_memory)
                        return launch_whole_heads<T, head_dim, Whole>(p, stream);
                }
                using Policy = Bits16BackwardPolicy<Choice, limit, RuleKind::none, false>;
                launch_backward_kernels<T, head_dim, Policy>(p, stream);
            });
        });
}

}  // namespace gradtile::attention::cuda
