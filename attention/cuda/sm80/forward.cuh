#pragma once
/// FlashAttention-2 forward on 16-bit tensor cores (Dao 2023, algorithm 1). Each thread block takes a block
/// of query rows and loops over K/V blocks. S and P stay in registers.
#include <algorithm>

#include <gradtile/attention/cuda/sm80/launch.h>
#include <gradtile/attention/cuda/sm80/tiles.h>
#include <gradtile/attention/cuda/common/block_sequence.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/attention/cuda/common/shared_tile.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {

namespace device {

/// Policy::tiles is a Bits16ForwardTiles. Policy is a type, because nvcc does not launch kernels that have
/// class-type template parameters.
template <class T, int head_dim, class Policy>
__global__ void __launch_bounds__(Policy::tiles.threads(), Policy::tiles.blocks_per_sm)
    forward_kernel(const __grid_constant__ Bits16ForwardParameters p) {
    constexpr Bits16ForwardTiles tiles = Policy::tiles;
    using QTile = Tile<tiles.rows(), head_dim>;
    using KvTile = Tile<tiles.keys, head_dim>;
    constexpr int m_tiles = tiles.warp_rows / 16, s_tiles = tiles.keys / 8, o_tiles = head_dim / 8;
    constexpr RuleKind kind = Policy::rule;
    using BiasTile = Tile<tiles.rows(), tiles.keys>;
    constexpr int stage_bytes =
        2 * KvTile::bytes + (tiles.reads_bias ? BiasTile::bytes + KeyBiasTile<tiles.keys>::bytes : 0);
    extern __shared__ __align__(128) unsigned char shared[];
    const std::uint32_t q_tile = shared_address(shared), kv_tiles = q_tile + QTile::bytes;

    // Consecutive thread blocks compute row blocks of the same head, so that the head's K and V stay in the
    // L2 cache. The last row blocks start first: under a causal mask they have the most work, and row blocks
    // with little work then fill the end of the run.
    __shared__ BlockSequence shared_sequence;
    BlockSequence own_sequence;
    int head, row_block;
    const bool is_packed = Policy::may_be_packed && p.packed;
    if constexpr (Policy::may_be_packed) gradtile::cuda::device::await_predecessor();
    if (is_packed) {
        head = static_cast<int>(blockIdx.x) / p.row_tasks.count;
        const PackedTask task = p.row_tasks.first[static_cast<int>(blockIdx.x) % p.row_tasks.count];
        if (task.sequence < 0) return;
        row_block = task.block;
        own_sequence = BlockSequence::from_task(p.mask, p.packed, task);
    } else {
        const int row_blocks = (p.mask.queries + tiles.rows() - 1) / tiles.rows();
        const int batch_head = static_cast<int>(blockIdx.x / row_blocks);
        row_block = row_blocks - 1 - static_cast<int>(blockIdx.x % row_blocks);
        head = batch_head % p.sizes.heads;
        own_sequence = BlockSequence::from_batch(p.mask, batch_head / p.sizes.heads);
    }
    if constexpr (Policy::may_be_packed) {
        if (threadIdx.x == 0) shared_sequence = own_sequence;
        __syncthreads();
    }
    const BlockSequence& sequence = Policy::may_be_packed ? shared_sequence : own_sequence;
    const DeviceMask& mask = sequence.mask;
    const int block_row = row_block * tiles.rows();
    const int block_rows = min(tiles.rows(), mask.queries - block_row);

    // Rarely used values are kept in shared memory, because O and S fill the registers.
    __shared__ struct {
        const std::uint16_t *k, *v;
        std::uint16_t* o;
        float *lse, *lse_remainder;
    } volatile pointers;
    const std::uint16_t* const k = sequence.keys(p.k, head / p.sizes.group).data;
    const std::uint16_t* const v = sequence.keys(p.v, head / p.sizes.group).data;
    if (threadIdx.x == 0) {
        pointers.k = k;
        pointers.v = v;
        pointers.o = sequence.queries(p.o, head).row(block_row);
        const std::int64_t first = std::int64_t{sequence.batch * p.sizes.heads + head} * p.mask.queries +
                                   sequence.first_query + block_row;
        pointers.lse = p.lse + first;
        pointers.lse_remainder = p.lse_remainder == nullptr ? nullptr : p.lse_remainder + first;
    }
    const int end_key = mask.end_key(block_row + block_rows - 1);
    const int first_block = mask.first_key(block_row) / tiles.keys;
    const int end_block = (end_key + tiles.keys - 1) / tiles.keys;

    __shared__ SharedRule rule;
    const auto key_bias_of = [&](std::uint32_t stage) {
        return KeyBiasTile<tiles.keys>{stage + 2 * KvTile::bytes + BiasTile::bytes};
    };
    const auto load_kv = [&](int block, const std::uint16_t* k, const std::uint16_t* v) {
        const std::uint32_t stage = kv_tiles + block % tiles.stages * stage_bytes;
        const int key = block * tiles.keys;
        load_tile_async<KvTile, tiles.threads()>(stage, k + key * p.k.row_stride, p.k.row_stride,
                                                 mask.keys - key, p.sizes.qk_dim);
        load_tile_async<KvTile, tiles.threads()>(stage + KvTile::bytes, v + key * p.v.row_stride,
                                                 p.v.row_stride, mask.keys - key, p.sizes.v_dim);
        if constexpr (Policy::tiles.reads_bias) {
            const auto& [pair_bias, key_bias] = rule.get().biases;
            load_tile_async<BiasTile, tiles.threads()>(
                stage + 2 * KvTile::bytes,
                reinterpret_cast<const std::uint16_t*>(pair_bias.data) + block_row * pair_bias.row_stride +
                    key,
                pair_bias.row_stride, block_rows, mask.keys - key);
            key_bias_of(stage).load_async(key_bias, key, mask.keys, static_cast<int>(reread_thread_index()));
        }
    };

    const int warp_row = warp_index() * tiles.warp_rows;
    const std::uint32_t warp_q = q_tile + warp_row * QTile::row_bytes;
    FragmentC o[m_tiles][o_tiles];
    clear(o);
    LazyOnlineSoftmax<m_tiles, has_terms(kind)> softmax(p.scale_log2);

    if constexpr (!Policy::may_be_packed) gradtile::cuda::device::await_predecessor();
    if constexpr (kind != RuleKind::none) {
        if (threadIdx.x == 0) rule.set(sequence.rule_of<float>(p.scores, head));
        __syncthreads();
    }
    load_tile_async<QTile, tiles.threads()>(q_tile, sequence.queries(p.q, head).row(block_row),
                                            p.q.row_stride, block_rows, p.sizes.qk_dim);
#pragma unroll
    for (int i = 0; i < tiles.stages - 1; ++i) {
        if (first_block + i < end_block) load_kv(first_block + i, k, v);
        commit_copies();
    }
    for (int block = first_block; block < end_block; ++block) {
        wait_for_copies<tiles.stages - 2>();
        __syncthreads();  // this block's K and V are in shared memory, and no warp reads the stage that is
                          // loaded next
        if (block + tiles.stages - 1 < end_block) load_kv(block + tiles.stages - 1, pointers.k, pointers.v);
        commit_copies();

        const int row = block_row + warp_row, key = block * tiles.keys;
        // On the diagonal of a causal mask, the warps with the first rows may see no key.
        if (!mask.sees_any(row, tiles.warp_rows, key, tiles.keys)) continue;
        const std::uint32_t stage = kv_tiles + block % tiles.stages * stage_bytes;
        FragmentC s[m_tiles][s_tiles];
        clear(s);
        multiply_a_bt<T, head_dim, tiles.unrolled>(s, LanePointer<QTile>::stacked(warp_q),
                                                   LanePointer<KvTile>::paired(stage));
        if constexpr (kind == RuleKind::pair_bias) {
            const std::uint32_t warp_bias = stage + 2 * KvTile::bytes + warp_row * BiasTile::row_bytes;
            const BiasRows& key_bias = rule.get().biases[1];
            if (key_bias.data != nullptr)
                add_key_bias<T>(s, p.prescale, key_bias_of(stage), key_bias.dtype, 0);
            add_bias_tile<T>(s, key_bias.data != nullptr ? 1.0f : p.prescale,
                             LanePointer<BiasTile>::stacked(warp_bias));
        } else {
            if (p.prescale != 1.0f) scale(s, p.prescale);
        }
        if constexpr (kind == RuleKind::any) apply_rule<T>(s, rule.get(), row, key, mask.queries, mask.keys);
        if (!mask.sees_all(row, tiles.warp_rows, key, tiles.keys)) mask_scores(s, mask, row, key);
        softmax.update(s, o);
        if constexpr (kind == RuleKind::any || kind == RuleKind::dropout) drop(s, rule.get(), row, key);

        FragmentA probabilities[s_tiles / 2][m_tiles];
        as_operand_a<T>(probabilities, s);
        multiply_a_b<T>(o, probabilities, LanePointer<KvTile>::stacked(stage + KvTile::bytes));
    }

    ExactLse lse[2 * m_tiles];
    if constexpr (kind == RuleKind::any) {
        softmax.add_sink(rule.get().sink, o);
    } else {
        // Converts the sink to the units of S, which is not yet multiplied by scale_log2.
        if (p.scores.sink != nullptr && !sequence.is_rest)
            softmax.add_sink(p.scores.sink[head * p.scores.sink_stride] * (log2_e / p.scale_log2), o);
    }
    softmax.finish(o, lse, kind == RuleKind::none ? 1.0f : rule.get().dropout_scale);
    if constexpr (has_terms(kind)) {
        if (p.non_finite != nullptr && !is_finite(o)) *p.non_finite = 1;
    }
    wait_for_copies<0>();
    if (first_block >= end_block) __syncthreads();  // without keys, no barrier has followed the copies of Q
    // Only this warp reads its rows of Q, and it no longer needs them. So O is stored through their shared
    // memory.
    const int out_row = warp_index() * tiles.warp_rows, valid_rows = block_rows - out_row;
    const std::uint32_t out_rows = q_tile + out_row * QTile::row_bytes;
    __syncwarp();
    stage_rows<T, QTile>(out_rows, o);
    __syncwarp();
    store_staged_rows<QTile, tiles.warp_rows>(pointers.o + out_row * p.o.row_stride, p.o.row_stride, out_rows,
                                              valid_rows, p.sizes.v_dim);
    float* const lse_rows = pointers.lse + out_row;
    float* const remainders = pointers.lse_remainder;
    if (const int lane = lane_index(); lane % 4 == 0) {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            const int row = i * 8 + lane / 4;
            if (row >= valid_rows) continue;
            lse_rows[row] = lse[i].lse;
            if constexpr (has_terms(kind)) {
                if (remainders != nullptr) remainders[out_row + row] = lse[i].remainder;
            }
        }
    }
}

}  // namespace device

/// Passes the tiles as a type, because nvcc does not launch kernels that have class-type template parameters.
template <class Choice, int shared_limit, RuleKind rule_, bool may_be_packed_>
struct Bits16ForwardPolicy {
    static constexpr Bits16ForwardTiles tiles = Choice::tiles(shared_limit);
    static constexpr RuleKind rule = rule_;
    static constexpr bool may_be_packed = may_be_packed_;  ///< whether the call may have packed sequences
};

template <class T, int head_dim, class Policy>
void launch_forward_kernel(Bits16ForwardParameters p, cudaStream_t stream) {
    constexpr Bits16ForwardTiles tiles = Policy::tiles;
    constexpr int shared_bytes = tiles.shared_bytes(head_dim);
    static_assert(shared_bytes * tiles.blocks_per_sm <= 227 * 1024);
    int row_blocks = (p.mask.queries + tiles.rows() - 1) / tiles.rows();
    if (p.packed) {
        p.row_tasks = make_packed_tasks(stream, p.packed, PackedOrder::last_rows_first, tiles.rows(),
                                        p.row_tasks.first);
        row_blocks = p.row_tasks.count;
    }
    const auto blocks =
        static_cast<unsigned>(static_cast<std::int64_t>(p.batch_size) * p.sizes.heads * row_blocks);
    gradtile::cuda::launch_on(stream, device::forward_kernel<T, head_dim, Policy>, blocks,
                              {static_cast<unsigned>(tiles.threads()), shared_bytes, /*starts_early=*/true},
                              p);
}

template <class T>
void launch_forward(const Bits16ForwardParameters& p, const Tiles& tiles, cudaStream_t stream) {
    visit_head_dim(
        Bits16HeadDims{}, std::max(p.sizes.qk_dim, p.sizes.v_dim), [&]<int head_dim>(HeadDim<head_dim>) {
            const auto launch = [&]<class Choice, RuleKind rule, bool may_be_packed>() {
                visit_shared_memory<Choice>(tiles.shared_limit, [&]<int limit>(SharedMemory<limit>) {
                    using Policy = Bits16ForwardPolicy<Choice, limit, rule, may_be_packed>;
                    launch_forward_kernel<T, head_dim, Policy>(p, stream);
                });
            };
            if constexpr (has_kernels(RuleKind::dropout, head_dim)) {
                using Choice = Bits16DropoutForwardChoice<head_dim>;
                if (p.rule == RuleKind::dropout)
                    return launch.template operator()<Choice, RuleKind::dropout, false>();
            }
            if constexpr (has_kernels(RuleKind::pair_bias, head_dim)) {
                using Choice = Bits16PairBiasForwardChoice<head_dim>;
                if (p.rule == RuleKind::pair_bias)
                    return launch.template operator()<Choice, RuleKind::pair_bias, false>();
            }
            if (p.rule != RuleKind::none) {
                launch.template operator()<Bits16RuleForwardChoice<head_dim>, RuleKind::any, true>();
            } else if (p.packed) {
                launch.template operator()<Bits16ForwardChoice<head_dim>, RuleKind::none, true>();
            } else {
                launch.template operator()<Bits16ForwardChoice<head_dim>, RuleKind::none, false>();
            }
        });
}

}  // namespace gradtile::attention::cuda
