#pragma once
/// FlashAttention-2 backward (Dao 2023, algorithm 2) with Hopper's asynchronous products and copies. A thread
/// block takes key blocks, one after the other, and loops over the row blocks that see them.
///
/// S^T = K Q^T and dP^T = V dO^T have keys as rows, so the P^T accumulators, rounded to 16 bits, are already
/// the left operand of dV = P^T dO. dS passes through shared memory, because a row of dQ = dS K sums over
/// both warpgroups' keys. The next S is computed while a warpgroup waits for the other warpgroup's dS.
///
/// dQ is summed in float32 in global memory. A thread in the producer warpgroup adds from shared memory, so
/// that consumers wait neither for turns nor for the memory system: d_q_bulk.cuh. The dQ accumulators exist
/// for the heads in flight only (d_q_ring.cuh), unless the addition order is fixed, sequences are packed or
/// long, or the head dim is 128.
///
/// Reading order: the kernel below; the tasks and the producer in backward_steps.cuh; the consumers' steps in
/// backward_consumer.cuh and their loop in backward_loop.cuh; the fastest way to add a row block, for plain
/// scores at head dim 64, in backward_16_bit_p.cuh; the additions to dQ in d_q_bulk.cuh and d_q_ring.cuh;
/// biases in backward_biases.cuh. backward_columns.cuh is another kernel, for head dims above 128.
///
/// P is multiplied by p_factor until dV and dS are complete, so that small P are also normal numbers in
/// binary16.
#include <gradtile/attention/cuda/sm90/backward_loop.cuh>
#include <gradtile/attention/cuda/sm90/block_order.cuh>
#include <gradtile/attention/cuda/sm90/d_q_bulk.cuh>

namespace gradtile::attention::cuda {

template <int head_dim_, bool in_turns_, bool is_packed_, HopperRule rule_,
          HopperBackwardTiles tiles_ = hopper_backward_tiles(head_dim_, takes_registers(rule_))>
struct HopperBackwardPolicy {
    static constexpr HopperRule rule = rule_;
    static constexpr bool may_drop = cuda::may_drop(rule);
    static constexpr int head_dim = head_dim_;
    static constexpr bool is_packed = is_packed_;  ///< whether sequences are packed
    static constexpr bool in_turns = in_turns_;    ///< whether additions to dQ have a fixed order
    static constexpr HopperBackwardTiles tiles = tiles_;
    static constexpr bool has_ranges = rule == HopperRule::row_ranges;
    /// Whether the dQ accumulators may exist for the heads in flight only. With row ranges, the host does not
    /// know how many key blocks add to a row block.
    static constexpr bool may_sum_in_ring = tiles.may_sum_in_ring && !in_turns && !is_packed && !has_ranges;
    // Finishers, and producers with biases or row ranges, need more registers than other producers. With row
    // ranges at head dim 128 consumers need them more: otherwise the compiler serializes their products.
    static constexpr int producer_registers =
                             !may_sum_in_ring
                                 ? (rule == HopperRule::biases || (has_ranges && head_dim <= 64) ? 40 : 24)
                             : head_dim == 64 ? 56
                                              : 40,
                         consumer_registers = 240 - (producer_registers - 24) / 2;
};

namespace device {

template <class T, class Policy>
__global__ void __launch_bounds__(Policy::tiles.threads(), 1)
    hopper_backward_kernel(const __grid_constant__ HopperBackwardParameters p) {
    using Shared = HopperBackwardShared<Policy>;
    constexpr HopperBackwardTiles tiles = Policy::tiles;
    extern __shared__ __align__(1024) unsigned char shared[];
    auto& rings = *reinterpret_cast<typename Shared::Rings*>(shared + Shared::rings);
    if (threadIdx.x == 0) {
        constexpr int consumer_warps = 4 * tiles.consumers;
        initialize(rings.kv, consumer_warps);
        initialize(rings.q, consumer_warps);
        initialize(rings.d_o, consumer_warps);
        initialize(rings.tasks, consumer_warps + 1);
        initialize(rings.d_q, 1, consumer_warps);
        if constexpr (Policy::may_sum_in_ring) initialize(rings.finished.ring, 1);
        rings.biases.initialize_all(consumer_warps);
        publish_barriers();
    }
    __syncthreads();
    gradtile::cuda::device::await_predecessor();
    if constexpr (Policy::may_drop) {
        if (threadIdx.x == 0) rings.dropout_key = p.params.scores.dropout.key();
        __syncthreads();
    }
    const std::uint32_t base = shared_address(shared);
    const int warpgroup = warpgroup_index();
    if (warpgroup == tiles.consumers) {
        release_registers_down_to<Policy::producer_registers>();
        const int warp = warp_index() - 4 * tiles.consumers;
        if (warp == 0 && lane_index() == 0) produce<Policy, Shared>(p, base, rings);
        if (warp == 1 && lane_index() == 0) add_in_bulk<Policy>(p, base, rings);
        if constexpr (Policy::may_sum_in_ring) {
            if (warp >= 2) finish_d_q_sums<T, Policy>(p, rings.finished, /*finisher=*/warp - 2);
        }
    } else {
        take_registers_up_to<Policy::consumer_registers>();
        BackwardConsumer<T, Policy>(p, base, rings, warpgroup).consume();
    }
}

}  // namespace device

/// Completes the ring's parameters.
inline DqRing ring_of(DqRing ring, const Bits16BackwardParameters& p, const HopperBackwardTiles& tiles) {
    ring.row_blocks = p.padded_rows / tiles.rows;
    for (int row = 0; row < p.mask.queries; row += tiles.rows) {
        if (device::additions_to(p.mask, row, tiles.rows, tiles.keys) > 0) {
            ring.finished_per_use += p.sizes.group;
        } else {
            ring.has_unseen_rows = true;
        }
    }
    ring.additions = p.next_task + 1;
    ring.finished = ring.additions + std::int64_t{ring.slots} * p.sizes.group * ring.row_blocks;
    return ring;
}

template <class T, class Policy>
void launch_hopper_backward_kernels(const HopperBackwardTensors& x,
                                    const Bits16BackwardParameters& parameters, const Context& ctx) {
    using namespace gradtile::cuda;
    constexpr int head_dim = Policy::head_dim;
    using Shared = device::HopperBackwardShared<Policy>;
    constexpr HopperBackwardTiles tiles = Policy::tiles;
    constexpr int shared_bytes = Shared::bytes;
    static_assert(shared_bytes <= 227 * 1024);
    const auto map = Policy::is_packed ? packed_tensor_map : tensor_map;
    HopperBackwardParameters p{.q = map(x.q, tiles.rows, Shared::RowTile::swizzle),
                               .d_o = map(x.d_o, tiles.rows, Shared::RowTile::swizzle),
                               .k = map(x.k, tiles.keys, Shared::KvTile::swizzle),
                               .v = map(x.v, tiles.keys, Shared::KvTile::swizzle),
                               .d_k = map(x.d_k, 64, Shared::KvTile::swizzle),
                               .d_v = map(x.d_v, 64, Shared::KvTile::swizzle),
                               .params = parameters};
    if constexpr (Policy::rule == HopperRule::biases)
        p.biases = HopperBiases(parameters.scores, x.q, parameters.mask, tiles.rows);
    if constexpr (Policy::has_ranges)
        launch_block_order<tiles.rows, OrderedBlocks::keys>(ctx, p.params.row_ranges, p.params.mask,
                                                            p.params.first_batch + p.params.batch_size,
                                                            p.params.sizes);
    const std::int64_t rows = prepare_tasks<Policy>(p, x, ctx);
    constexpr TurnTiles turns = turn_tiles(tiles);
    static_assert(turns.keys() == tiles.keys && turns.warps() == 4 * tiles.consumers);
    const bool has_ring = Policy::may_sum_in_ring && x.ring.slots > 0;
    if (has_ring) {
        p.ring = ring_of(x.ring, parameters, tiles);
        launch(ctx, device::clear_d_q_ring_kernel<head_dim, tiles.rows, tiles.keys>,
               dim3(static_cast<unsigned>(4 * processors_of(ctx))), {.threads = 256, .starts_early = true},
               p);
        p.params.d_q_sums = nullptr;  // the next kernel does not clear them
    }
    launch(ctx, device::prepare_backward_kernel<T>, blocks_for(rows, device::prepared_rows),
           {.threads = 256, .starts_early = true}, p.params, turns, head_dim);
    p.params.d_q_sums = parameters.d_q_sums;
    const int blocks = std::min(p.tasks, processors_of(ctx));
    launch(ctx, device::hopper_backward_kernel<T, Policy>, static_cast<unsigned>(blocks),
           {static_cast<unsigned>(tiles.threads()), shared_bytes, /*starts_early=*/true}, p);
    if (!has_ring)
        launch(ctx, device::finish_d_q_kernel<T, head_dim>, blocks_for(rows, device::finished_rows),
               {.threads = 128, .starts_early = true}, p.params);
}

template <class T>
void launch_hopper_backward(const HopperBackwardTensors& x, const Bits16BackwardParameters& parameters,
                            const Context& ctx) {
    visit_head_dim(
        HopperBackwardHeadDims{}, std::max(parameters.sizes.qk_dim, parameters.sizes.v_dim),
        [&]<int head_dim>(HeadDim<head_dim>) {
            const auto launch = [&]<bool in_turns, bool is_packed>() {
                const bool has_ranges = static_cast<bool>(parameters.row_ranges);
                visit_hopper_backward_rule(parameters.scores, has_ranges, [&]<HopperRule rule>() {
                    constexpr HopperRule compiled_rule = kernel_rule(rule, head_dim, is_packed || in_turns);
                    using Policy = HopperBackwardPolicy<head_dim, in_turns, is_packed, compiled_rule>;
                    if constexpr (has_hopper_kernels(compiled_rule, head_dim, is_packed) &&
                                  !(Policy::has_ranges && in_turns))
                        launch_hopper_backward_kernels<T, Policy>(x, parameters, ctx);
                });
            };
            visit_turns_and_packing(parameters, launch);
        });
}

}  // namespace gradtile::attention::cuda
