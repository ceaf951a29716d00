#pragma once
/// FlashAttention-2 forward on 16-bit tensor cores (Dao 2023, algorithm 1). Each thread block takes a block
/// of query rows and loops over K/V blocks. S and P stay in registers.
#include <algorithm>

#include <gradtile/attention/cuda/sm80/launch.h>
#include <gradtile/attention/cuda/sm80/tiles.h>
#include <gradtile/attention/cuda/common/block_sequence.cuh>
#include <gradtile/attention/cuda/common/row_ranges.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/attention/cuda/common/shared_tile.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {

namespace device {

/// The phases of forward_kernel() for one thread block, which computes one row block of one head.
template <class T, int head_dim, class Policy>
class ForwardBlock {
    static constexpr Bits16ForwardTiles tiles = Policy::tiles;
    static constexpr RuleKind kind = Policy::rule;
    static constexpr bool may_have_ranges = kind == RuleKind::any;
    static_assert(tiles.stages == 2, "while one key block is used, the next one is loaded");
    static constexpr int m_tiles = tiles.warp_rows / 16, s_tiles = tiles.keys / 8, o_tiles = head_dim / 8;
    using QTile = Tile<tiles.rows(), head_dim>;
    using KvTile = Tile<tiles.keys, head_dim>;
    using BiasTile = Tile<tiles.rows(), tiles.keys>;
    using Scores = FragmentC[m_tiles][s_tiles];
    using Output = FragmentC[m_tiles][o_tiles];
    using Softmax = LazyOnlineSoftmax<m_tiles, has_terms(kind)>;
    static constexpr int stage_bytes =
        2 * KvTile::bytes + (tiles.reads_bias ? BiasTile::bytes + KeyBiasTile<tiles.keys>::bytes : 0);

  public:
    /// Rarely used values are kept in shared memory, because O and S fill the registers.
    struct Rare {
        const std::uint16_t *k, *v;
        std::uint16_t* o;
        float *lse, *lse_remainder;
        const KeyRows* key_rows;  ///< null: the call has no row ranges
        const KeyBlockRows* block_rows;
    };

    /// Consecutive thread blocks compute row blocks of the same head, so that the head's K and V stay in the
    /// L2 cache. The last row blocks start first: under a causal mask they have the most work, and row blocks
    /// with little work then fill the end of the run.
    __device__ __forceinline__ static RowBlock row_block_of_block(const Bits16ForwardParameters& p) {
        const int block = static_cast<int>(blockIdx.x);
        if (Policy::may_be_packed && p.packed)
            return RowBlock::from_tasks(p.mask, p.packed, p.row_tasks, block);
        const int row_blocks = (p.mask.queries + tiles.rows() - 1) / tiles.rows();
        const int batch_head = static_cast<int>(blockIdx.x / row_blocks);
        return {BlockSequence::from_batch(p.mask, batch_head / p.sizes.heads), batch_head % p.sizes.heads,
                row_blocks - 1 - static_cast<int>(blockIdx.x % row_blocks), true};
    }

    __device__ __forceinline__ ForwardBlock(const Bits16ForwardParameters& p, const BlockSequence& sequence,
                                            int head, int row_block, volatile Rare& rare, SharedRule& rule,
                                            unsigned char* shared)
        : p_(p),
          sequence_(sequence),
          mask_(sequence.mask),
          rare_(rare),
          rule_(rule),
          head_(head),
          block_row_(row_block * tiles.rows()),
          block_rows_(min(tiles.rows(), mask_.queries - block_row_)),
          q_tile_(shared_address(shared)),
          kv_tiles_(q_tile_ + QTile::bytes),
          warp_row_(warp_index() * tiles.warp_rows) {
        const std::uint16_t* const k = sequence.keys(p.k, head / p.sizes.group).data;
        const std::uint16_t* const v = sequence.keys(p.v, head / p.sizes.group).data;
        if (threadIdx.x == 0) {
            rare.k = k;
            rare.v = v;
            rare.o = sequence.queries(p.o, head).row(block_row_);
            const std::int64_t first = std::int64_t{sequence.batch * p.sizes.heads + head} * p.mask.queries +
                                       sequence.first_query + block_row_;
            rare.lse = p.lse + first;
            rare.lse_remainder = p.lse_remainder == nullptr ? nullptr : p.lse_remainder + first;
            if constexpr (may_have_ranges) {
                const HeadRowRanges ranges =
                    p.row_ranges.of(sequence.batch, head, sequence.first_key, p.packed ? sequence.index : 0);
                rare.key_rows = ranges.keys;
                rare.block_rows = ranges.blocks;
            }
        }
        if constexpr (may_have_ranges) __syncthreads();
        first_k_ = k;
        first_v_ = v;
        const int end_key = mask_.end_key(block_row_ + block_rows_ - 1);
        end_block_ = (end_key + tiles.keys - 1) / tiles.keys;
        first_block_ = seen_block(mask_.first_key(block_row_) / tiles.keys);
    }

    __device__ __forceinline__ void start_copies() const {
        load_tile_async<QTile, tiles.threads()>(q_tile_, sequence_.queries(p_.q, head_).row(block_row_),
                                                p_.q.row_stride, block_rows_, p_.sizes.qk_dim);
        if (first_block_ < end_block_) load_kv(first_block_, first_block_, first_k_, first_v_);
        commit_copies();
    }

    __device__ __forceinline__ void attend(Output& o, Softmax& softmax) const {
        const std::uint32_t warp_q = q_tile_ + warp_row_ * QTile::row_bytes;
        int next;
        for (int block = first_block_, number = first_block_; block < end_block_; block = next, ++number) {
            next = seen_block(block + 1);
            wait_for_copies<0>();
            __syncthreads();  // this block's K and V are in shared memory, and no warp reads the stage that
                              // is loaded next
            if (next < end_block_) load_kv(next, number + 1, rare_.k, rare_.v);
            commit_copies();

            const int row = block_row_ + warp_row_, key = block * tiles.keys;
            // On the diagonal of a causal mask, the warps with the first rows may see no key.
            if (!mask_.sees_any(row, tiles.warp_rows, key, tiles.keys)) continue;
            const std::uint32_t stage = stage_of(number);
            Scores s;
            clear(s);
            multiply_a_bt<T, head_dim, tiles.unrolled>(s, LanePointer<QTile>::stacked(warp_q),
                                                       LanePointer<KvTile>::paired(stage));
            apply_terms(s, stage, row, key);
            if (!mask_.sees_all(row, tiles.warp_rows, key, tiles.keys)) mask_scores(s, mask_, row, key);
            mask_by_ranges(s, block, row);
            softmax.update(s, o);
            if constexpr (kind == RuleKind::any || kind == RuleKind::dropout) drop(s, rule_.get(), row, key);

            FragmentA probabilities[s_tiles / 2][m_tiles];
            as_operand_a<T>(probabilities, s);
            multiply_a_b<T>(o, probabilities, LanePointer<KvTile>::stacked(stage + KvTile::bytes));
        }
    }

    __device__ __forceinline__ void finish(Output& o, Softmax& softmax) const {
        ExactLse lse[2 * m_tiles];
        if constexpr (kind == RuleKind::any) {
            softmax.add_sink(rule_.get().sink, o);
        } else {
            // Converts the sink to the units of S, which is not yet multiplied by scale_log2.
            if (p_.scores.sink != nullptr && !sequence_.is_rest)
                softmax.add_sink(p_.scores.sink[head_ * p_.scores.sink_stride] * (log2_e / p_.scale_log2), o);
        }
        softmax.finish(o, lse, kind == RuleKind::none ? 1.0f : rule_.get().dropout_scale);
        if constexpr (has_terms(kind)) {
            if (p_.non_finite != nullptr && !is_finite(o)) *p_.non_finite = 1;
        }
        wait_for_copies<0>();
        if (first_block_ >= end_block_) __syncthreads();  // without keys, no barrier has followed Q's copies
        store_output(o);
        store_lse(lse);
    }

  private:
    /// `number` counts the key blocks that are loaded.
    __device__ __forceinline__ std::uint32_t stage_of(int number) const {
        return kv_tiles_ + number % tiles.stages * stage_bytes;
    }
    /// The first key block from `block` on that a row may see, as far as the row ranges say.
    __device__ __forceinline__ int seen_block(int block) const {
        if constexpr (may_have_ranges) {
            if (rare_.key_rows != nullptr)
                return next_seen_block(rare_.block_rows, block, end_block_, block_row_,
                                       block_row_ + block_rows_);
        }
        return block;
    }
    __device__ __forceinline__ void mask_by_ranges(Scores& s, int block, int row) const {
        if constexpr (may_have_ranges) {
            const KeyRows* const keys = rare_.key_rows;
            if (keys == nullptr || rare_.block_rows[block].see_all(row, row + tiles.warp_rows)) return;
            hide_unseen_pairs(s, keys + block * tiles.keys, row);
        }
    }
    __device__ __forceinline__ static KeyBiasTile<tiles.keys> key_bias_in(std::uint32_t stage) {
        return {stage + 2 * KvTile::bytes + BiasTile::bytes};
    }

    __device__ __forceinline__ void load_kv(int block, int number, const std::uint16_t* k,
                                            const std::uint16_t* v) const {
        const std::uint32_t stage = stage_of(number);
        const int key = block * tiles.keys;
        load_tile_async<KvTile, tiles.threads()>(stage, k + key * p_.k.row_stride, p_.k.row_stride,
                                                 mask_.keys - key, p_.sizes.qk_dim);
        load_tile_async<KvTile, tiles.threads()>(stage + KvTile::bytes, v + key * p_.v.row_stride,
                                                 p_.v.row_stride, mask_.keys - key, p_.sizes.v_dim);
        if constexpr (tiles.reads_bias) {
            const auto& [pair_bias, key_bias] = rule_.get().biases;
            load_tile_async<BiasTile, tiles.threads()>(
                stage + 2 * KvTile::bytes,
                reinterpret_cast<const std::uint16_t*>(pair_bias.data) + block_row_ * pair_bias.row_stride +
                    key,
                pair_bias.row_stride, block_rows_, mask_.keys - key);
            key_bias_in(stage).load_async(key_bias, key, mask_.keys, static_cast<int>(reread_thread_index()));
        }
    }

    /// Turns products into scores before the mask.
    __device__ __forceinline__ void apply_terms(Scores& s, std::uint32_t stage, int row, int key) const {
        if constexpr (kind == RuleKind::pair_bias) {
            const std::uint32_t warp_bias = stage + 2 * KvTile::bytes + warp_row_ * BiasTile::row_bytes;
            const BiasRows& key_bias = rule_.get().biases[1];
            if (key_bias.data != nullptr)
                add_key_bias<T>(s, p_.prescale, key_bias_in(stage), key_bias.dtype, 0);
            add_bias_tile<T>(s, key_bias.data != nullptr ? 1.0f : p_.prescale,
                             LanePointer<BiasTile>::stacked(warp_bias));
        } else {
            if (p_.prescale != 1.0f) scale(s, p_.prescale);
        }
        if constexpr (kind == RuleKind::any)
            apply_rule<T>(s, rule_.get(), row, key, mask_.queries, mask_.keys);
    }

    /// Only this warp reads its rows of Q, and it no longer needs them. So O is stored through their shared
    /// memory.
    __device__ __forceinline__ void store_output(const Output& o) const {
        const int out_row = warp_index() * tiles.warp_rows;
        const std::uint32_t out_rows = q_tile_ + out_row * QTile::row_bytes;
        __syncwarp();
        stage_rows<T, QTile>(out_rows, o);
        __syncwarp();
        store_staged_rows<QTile, tiles.warp_rows>(rare_.o + out_row * p_.o.row_stride, p_.o.row_stride,
                                                  out_rows, block_rows_ - out_row, p_.sizes.v_dim);
    }
    __device__ __forceinline__ void store_lse(const ExactLse (&lse)[2 * m_tiles]) const {
        const int out_row = warp_index() * tiles.warp_rows, lane = lane_index();
        float* const lse_rows = rare_.lse + out_row;
        float* const remainders = rare_.lse_remainder;
        if (lane % 4 != 0) return;
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            const int row = i * 8 + lane / 4;
            if (row >= block_rows_ - out_row) continue;
            lse_rows[row] = lse[i].lse;
            if constexpr (has_terms(kind)) {
                if (remainders != nullptr) remainders[out_row + row] = lse[i].remainder;
            }
        }
    }

    const Bits16ForwardParameters& p_;
    const BlockSequence& sequence_;
    const DeviceMask& mask_;
    volatile Rare& rare_;
    SharedRule& rule_;
    int head_, block_row_, block_rows_;
    std::uint32_t q_tile_, kv_tiles_;
    int warp_row_;
    const std::uint16_t *first_k_, *first_v_;
    int first_block_, end_block_;
};

/// Policy::tiles is a Bits16ForwardTiles. Policy is a type, because nvcc does not launch kernels that have
/// class-type template parameters.
template <class T, int head_dim, class Policy>
__global__ void __launch_bounds__(Policy::tiles.threads(), Policy::tiles.blocks_per_sm)
    forward_kernel(const __grid_constant__ Bits16ForwardParameters p) {
    using Block = ForwardBlock<T, head_dim, Policy>;
    constexpr Bits16ForwardTiles tiles = Policy::tiles;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ BlockSequence shared_sequence;
    __shared__ volatile typename Block::Rare rare;
    __shared__ SharedRule rule;

    if constexpr (Policy::may_be_packed) gradtile::cuda::device::await_predecessor();
    const RowBlock own = Block::row_block_of_block(p);
    if (!own.exists) return;
    if constexpr (Policy::may_be_packed) {
        if (threadIdx.x == 0) shared_sequence = own.sequence;
        __syncthreads();
    }
    const BlockSequence& sequence = Policy::may_be_packed ? shared_sequence : own.sequence;
    const Block block(p, sequence, own.head, own.number, rare, rule, shared);
    FragmentC o[tiles.warp_rows / 16][head_dim / 8];
    clear(o);
    LazyOnlineSoftmax<tiles.warp_rows / 16, has_terms(Policy::rule)> softmax(p.scale_log2);

    if constexpr (!Policy::may_be_packed) gradtile::cuda::device::await_predecessor();
    if constexpr (Policy::rule != RuleKind::none) {
        if (threadIdx.x == 0) rule.set(rule_of<float>(sequence, p.scores, own.head));
        __syncthreads();
    }
    block.start_copies();
    block.attend(o, softmax);
    block.finish(o, softmax);
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
