#pragma once
/// FlashAttention-2 forward (Dao 2023, algorithm 1) with Hopper's asynchronous products and copies.
///
/// The kernel is persistent: a thread block computes one row block after the other. Its producer warp copies
/// Q, K and V to shared memory ahead of time, also for the next row block. Each consumer warpgroup takes 64
/// rows. It starts S for the next key block, and O += P V for the present one, before it computes
/// exponentials, so that the tensor cores do not wait for them (Shah et al. 2024, "FlashAttention-3",
/// algorithm 2). Other warpgroups use the tensor cores in the meantime.
///
/// Reading order: the tasks and the producer in forward_producer.cuh, then the consumers and the kernel
/// below.
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/attention/cuda/sm90/distance_rule.cuh>
#include <gradtile/attention/cuda/sm90/forward_producer.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/warpgroup.cuh>

namespace gradtile::attention::cuda {

namespace device {

/// A consumer warpgroup. It computes O and LSE for 64 rows in each task.
template <class T, class Policy>
class ForwardConsumer {
    using Shared = HopperForwardShared<Policy>;
    using QTile = typename Shared::QTile;
    using KTile = typename Shared::KTile;
    using VTile = typename Shared::VTile;
    using OTile = typename Shared::OTile;
    using Task = typename Shared::Task;
    static constexpr HopperForwardTiles tiles = Policy::tiles;
    using Scores = FragmentC[1][tiles.keys / 8];
    using Output = FragmentC[1][Policy::v_dim / 8];
    using Probabilities = FragmentA[tiles.keys / 16][1];
    using Kept = KeptKeys<tiles.keys>;
    static constexpr int first_order = 1 + tiles.consumers;  ///< first barrier number for turns
    static constexpr bool has_ranges = Policy::rule == HopperRule::row_ranges;
    /// Otherwise Q's memory is released when Q is in registers, or when O, which shares it, is stored.
    static constexpr bool releases_q_after_scores = tiles.has_o() && !tiles.q_in_registers;
    static_assert(!(has_ranges && tiles.q_in_registers));

  public:
    __device__ __forceinline__ ForwardConsumer(const HopperForwardParameters& p, std::uint32_t base,
                                               typename Shared::Rings& rings, int warpgroup)
        : p_(p),
          base_(base),
          rings_(rings),
          tasks_(rings.tasks),
          dropout_key_(rings.dropout_key),
          q_(rings.q),
          k_(rings.k),
          v_(rings.v),
          warpgroup_(warpgroup),
          warp_row_(warp_index() % 4 * 16) {}

    __device__ __forceinline__ void consume() {
        if (warpgroup_ == tiles.consumers - 1) pass_order();  // warpgroup 0 has the first turn
        for (;;) {
            q_.wait_full();
            const Task task = Task::load(tasks_[q_.stage()]);
            if (task.row < 0) break;
            if constexpr (has_ranges) {
                attend_seen_blocks(task);
            } else {
                attend(task);
            }
        }
        if (is_first_of_warpgroup()) wait_until_stores_have_read();
    }

  private:
    __device__ __forceinline__ void attend(const Task& task) {
        const int row = task.row + warpgroup_ * 64;
        decltype(auto) seen = task.mask(p_);
        const auto blocks = KeyBlocks::seen_by<tiles.keys>(seen, task.row, tiles.rows());
        KeyBlocks own = KeyBlocks::seen_by<tiles.keys>(seen, row, 64);
        if (own.begin >= own.end) own = {blocks.end, blocks.end};
        if constexpr (tiles.q_in_registers) load_queries();
        Output o;
        clear(o);
        LazyOnlineSoftmax<1> softmax(p_.scale_log2);
        skip(blocks.end - own.end);
        if (own.begin < own.end) {
            Scores s;
            Probabilities probabilities;
            Kept kept;
            k_.wait_full();
            wait_for_order();
            start_scores(s);
            pass_order();
            draw(kept, task, row, own.end - 1);
            await_products<0>(s[0]);
            release(k_);
            add_terms(s, seen, task, row, own.end - 1);
            mask(s, seen, row, own.end - 1);
            softmax.raise_reference(s);
            softmax.exponentiate(s);
            as_operand_a<T>(probabilities, s);
            drop(probabilities, kept);
            for (int block = own.end - 2; block >= own.begin; --block) {
                k_.wait_full();
                start_scores_and_output(s, o, probabilities);
                draw(kept, task, row, block);
                await_products<1>(s[0]);
                release(k_);
                add_terms(s, seen, task, row, block);
                mask(s, seen, row, block);
                finish_output(s, o, probabilities, softmax);
                drop(probabilities, kept);
            }
            if constexpr (releases_q_after_scores) release(q_);
            add_last_values(o, probabilities);
        } else if constexpr (releases_q_after_scores) {
            release(q_);
        }
        skip(own.begin - blocks.begin);
        finish(o, softmax, task, row);
    }

    /// The same for the key blocks that the producer chose by the row ranges.
    __device__ __forceinline__ void attend_seen_blocks(const Task& task) {
        const int row = task.row + warpgroup_ * 64;
        Output o;
        clear(o);
        LazyOnlineSoftmax<1> softmax(p_.scale_log2);
        const volatile int* const words = rings_.seen.words;
        const volatile int* const has_blocks = rings_.seen.has_blocks;
        for (bool is_last = has_blocks[q_.stage()] == 0; !is_last;) {
            k_.wait_full();
            SeenBlock block{words[k_.stage()]};
            is_last = block.is_last();
            if (!block.is_seen_by(warpgroup_)) {
                skip(1);
                continue;
            }
            // A run of key blocks that the warpgroup's rows see.
            Scores s;
            Probabilities probabilities;
            SeenPairs<1, tiles.keys / 8> pairs;
            wait_for_order();
            start_scores(s);
            pass_order();
            load_seen_pairs(pairs, task, row, block);
            await_products<0>(s[0]);
            release(k_);
            mask_seen_block(s, pairs, row, block);
            if (softmax.raise_reference(s)) softmax.rescale(o);
            softmax.exponentiate(s);
            as_operand_a<T>(probabilities, s);
            while (!is_last) {
                k_.wait_full();
                block = {words[k_.stage()]};
                if (!block.is_seen_by(warpgroup_)) break;
                is_last = block.is_last();
                start_scores_and_output(s, o, probabilities);
                load_seen_pairs(pairs, task, row, block);
                await_products<1>(s[0]);
                release(k_);
                mask_seen_block(s, pairs, row, block);
                finish_output(s, o, probabilities, softmax);
            }
            add_last_values(o, probabilities);
        }
        if constexpr (releases_q_after_scores) release(q_);
        finish(o, softmax, task, row);
    }
    __device__ __forceinline__ void load_seen_pairs(SeenPairs<1, tiles.keys / 8>& pairs, const Task& task,
                                                    int row, SeenBlock block) const {
        if (block.is_partial_for(warpgroup_))
            pairs.load(p_.row_ranges.of(task.batch, task.head).keys + block.block() * tiles.keys,
                       row + warp_row_);
    }
    __device__ __forceinline__ void mask_seen_block(Scores& s, const SeenPairs<1, tiles.keys / 8>& pairs,
                                                    int row, SeenBlock block) const {
        mask(s, p_.mask, row, block.block());
        if (block.is_partial_for(warpgroup_)) pairs.hide_others(s);
    }

    __device__ __forceinline__ void finish(Output& o, LazyOnlineSoftmax<1>& softmax, const Task& task,
                                           int row) {
        if (task.has_sink(p_))  // in the units of S, before scale_log2 is applied
            softmax.add_sink(p_.sink[task.head * p_.sink_stride] * (log2_e / p_.scale_log2), o);
        ExactLse lse[2];
        softmax.finish(o, lse, may_drop(Policy::rule) ? static_cast<float>(p_.scores.dropout.scale) : 1.0f);
        if constexpr (has_ranges) {
            if (!is_finite(o)) *p_.non_finite = 1;
        }
        store(o, lse, task, row);
    }

    /// The address of the warpgroup's rows.
    __device__ __forceinline__ std::uint32_t q_rows() const {
        return base_ + Shared::q + q_.stage() * QTile::bytes + warpgroup_ * 64 * QTile::row_bytes;
    }
    /// Copies Q to registers and releases its memory.
    __device__ __forceinline__ void load_queries() {
        const auto rows = LanePointer<QTile>::stacked(q_rows() + warp_row_ * QTile::row_bytes);
#pragma unroll
        for (int i = 0; i < Policy::qk_dim / 16; ++i)
            load_matrices<false>(queries_[i][0], rows.at(0, i * 16));
        release(q_);
    }
    __device__ __forceinline__ void start_scores(Scores& s) {
        const std::uint32_t k = base_ + Shared::k + k_.stage() * KTile::bytes;
        begin_products();
        if constexpr (tiles.q_in_registers) {
            start_a_bt<T, KTile>(s[0], queries_, k);
        } else {
            start_a_bt<T, QTile, KTile>(s[0], q_rows(), k);
        }
        commit_products();
    }
    /// Starts a block's scores, and the product of the previous block's P and V.
    __device__ __forceinline__ void start_scores_and_output(Scores& s, Output& o,
                                                            const Probabilities& probabilities) {
        wait_for_order();
        start_scores(s);
        v_.wait_full();
        start_output(o, probabilities);
        pass_order();
    }
    /// Computes a block's P while the tensor cores multiply the previous block's.
    __device__ __forceinline__ void finish_output(Scores& s, Output& o, Probabilities& probabilities,
                                                  LazyOnlineSoftmax<1>& softmax) {
        const bool rescales = softmax.raise_reference(s);
        softmax.exponentiate(s);
        await_products<0>(o[0]);
        release(v_);
        if (rescales) softmax.rescale(o);
        as_operand_a<T>(probabilities, s);
    }
    __device__ __forceinline__ void add_last_values(Output& o, const Probabilities& probabilities) {
        v_.wait_full();
        start_output(o, probabilities);
        await_products<0>(o[0]);
        release(v_);
    }
    // Warpgroups start a key block's products in turns, so that one warpgroup's exponentials are computed
    // during another's products.
    __device__ __forceinline__ void wait_for_order() const {
        if constexpr (tiles.ordered) wait_at(first_order + warpgroup_, 2 * warpgroup_threads);
    }
    __device__ __forceinline__ void pass_order() const {
        if constexpr (tiles.ordered)
            arrive_at(first_order + (warpgroup_ + 1) % tiles.consumers, 2 * warpgroup_threads);
    }
    __device__ __forceinline__ void start_output(Output& o, const Probabilities& probabilities) {
        begin_products();
        start_a_b<T, VTile>(o[0], probabilities, base_ + Shared::v + v_.stage() * VTile::bytes);
        commit_products();
    }
    __device__ __forceinline__ void add_terms(Scores& s, const DeviceMask& seen, const Task& task, int row,
                                              int block) const {
        if constexpr (Policy::rule == HopperRule::formula) {
            if (p_.scores.changes_products()) mask(s, seen, row, block);  // hidden NaN: ProductFunction
        }
        apply_unscaled_rule<Policy::rule, RowsAre::queries>(s, p_.scores, seen, p_.scale_log2, task.head,
                                                            row + warp_row_, block * tiles.keys);
    }
    __device__ __forceinline__ void draw(Kept& kept, const Task& task, int row, int block) const {
        if constexpr (may_drop(Policy::rule)) {
            if (Policy::rule == HopperRule::formula && !p_.scores.drops()) return;
            kept.draw(head_draws(p_.scores.dropout, dropout_key_, task.sequence(), task.head),
                      row + warp_row_, block * tiles.keys);
        }
    }
    __device__ __forceinline__ void drop(Probabilities& probabilities, const Kept& kept) const {
        if constexpr (may_drop(Policy::rule)) {
            if (Policy::rule == HopperRule::formula && !p_.scores.drops()) return;
            kept.drop_others(probabilities);
        }
    }
    __device__ __forceinline__ void mask(Scores& s, const DeviceMask& seen, int row, int block) const {
        const int key = block * tiles.keys;
        if (!seen.sees_all(row, 64, key, tiles.keys)) mask_scores(s, seen, row + warp_row_, key);
    }

    /// Skips key blocks that only other warpgroups' rows see.
    __device__ __forceinline__ void skip(int blocks) {
        for (int i = 0; i < blocks; ++i) {
            wait_for_order();
            pass_order();
            k_.wait_full();
            release(k_);
            v_.wait_full();
            release(v_);
        }
    }

    /// Stores O through shared memory.
    __device__ __forceinline__ void store(const Output& o, const ExactLse (&lse)[2], const Task& task,
                                          int row) {
        const int queries = task.mask(p_).queries;
        const std::uint32_t rows = base_ + Shared::o + warpgroup_ * 64 * OTile::row_bytes;
        if (is_first_of_warpgroup()) wait_until_stores_have_read();
        wait_for_warpgroup();
        stage_rows<T, OTile>(rows + warp_row_ * OTile::row_bytes, o);
        publish_shared_writes();
        wait_for_warpgroup();
        if (is_first_of_warpgroup()) {
            if (row < queries) {
#pragma unroll
                for (int i = 0; i < OTile::panels; ++i)
                    store_box(p_.o, task.row_box(p_, i * OTile::panel_columns, row),
                              rows + i * OTile::panel_bytes);
            }
            commit_stores();
            if constexpr (!tiles.has_o()) wait_until_stores_have_read();
        }
        if constexpr (!tiles.has_o()) {
            wait_for_warpgroup();
            release(q_);
        }
        if (const int lane = lane_index(); lane % 4 == 0) {
            float* const head_lse = task.lse(p_);
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (const int lane_row = row + warp_row_ + i * 8 + lane / 4; lane_row < queries)
                    head_lse[lane_row] = lse[i].lse;
        }
    }
    __device__ __forceinline__ void wait_for_warpgroup() const {
        wait_at(1 + warpgroup_, warpgroup_threads);
    }

    const HopperForwardParameters& p_;
    std::uint32_t base_;
    typename Shared::Rings& rings_;
    const volatile Task* tasks_;
    const Philox::Key& dropout_key_;
    RingPosition<tiles.q_stages> q_;
    RingPosition<tiles.stages> k_, v_;
    int warpgroup_;
    int warp_row_;                               ///< the warp's first row in its warpgroup
    FragmentA queries_[Policy::qk_dim / 16][1];  ///< only if tiles.q_in_registers
};

template <class T, class Policy>
__global__ void __launch_bounds__(Policy::tiles.threads(), 1)
    hopper_forward_kernel(const __grid_constant__ HopperForwardParameters p) {
    using Shared = HopperForwardShared<Policy>;
    constexpr HopperForwardTiles tiles = Policy::tiles;
    extern __shared__ __align__(1024) unsigned char shared[];
    auto& rings = *reinterpret_cast<typename Shared::Rings*>(shared + Shared::rings);
    if (threadIdx.x == 0) {
        constexpr int consumer_warps = 4 * tiles.consumers;
        initialize(rings.q, consumer_warps);
        initialize(rings.k, consumer_warps);
        initialize(rings.v, consumer_warps);
        publish_barriers();
    }
    __syncthreads();
    gradtile::cuda::device::await_predecessor();
    if constexpr (may_drop(Policy::rule)) {
        if (threadIdx.x == 0) rings.dropout_key = p.scores.dropout.key();
        __syncthreads();
    }
    const std::uint32_t base = shared_address(shared);
    const int warpgroup = warpgroup_index();
    if (warpgroup == tiles.consumers) {
        release_registers_down_to<tiles.producer_registers()>();
        if constexpr (Policy::rule == HopperRule::row_ranges) {
            if (warp_index() == 4 * tiles.consumers) produce_seen_blocks<Policy>(p, base, rings);
        } else {
            if (threadIdx.x == tiles.consumers * warpgroup_threads) produce<Policy>(p, base, rings);
        }
    } else {
        take_registers_up_to<tiles.consumer_registers()>();
        ForwardConsumer<T, Policy>(p, base, rings, warpgroup).consume();
    }
}

}  // namespace device

template <int qk_dim_, int v_dim_, bool is_packed_, HopperRule rule_,
          HopperForwardTiles tiles_ = hopper_forward_tiles(qk_dim_, rule_, is_packed_)>
struct HopperForwardPolicy {
    static constexpr HopperRule rule = rule_;
    static constexpr int qk_dim = qk_dim_, v_dim = v_dim_;
    static constexpr bool is_packed = is_packed_;  ///< whether sequences are packed
    static constexpr HopperForwardTiles tiles = tiles_;
};

/// Divides a dense call's rows into tasks.
template <class Policy>
void divide_rows(HopperForwardParameters& p, std::int64_t heads) {
    p.row_blocks = (p.mask.queries + Policy::tiles.rows() - 1) / Policy::tiles.rows();
    p.order = device::TaskOrder::with_sets(heads, p.pairs ? (p.row_blocks + 1) / 2 : p.row_blocks,
                                           p.order.cached_heads);
    p.tasks = static_cast<int>(heads * p.order.parts);
}
/// The same for packed sequences.
template <class Policy>
void divide_packed_rows(HopperForwardParameters& p, std::int64_t heads, cudaStream_t stream) {
    p.row_tasks = make_packed_tasks(stream, p.packed, PackedOrder::last_rows_first, Policy::tiles.rows(),
                                    p.row_tasks.first);
    p.order = device::TaskOrder::with_sets(heads, p.row_tasks.count, p.order.cached_heads);
    p.tasks = static_cast<int>(heads * p.row_tasks.count);
}

template <class T, class Policy>
void launch_hopper_forward_policy(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                  HopperForwardParameters p, const Context& ctx) {
    using Shared = device::HopperForwardShared<Policy>;
    constexpr HopperForwardTiles tiles = Policy::tiles;
    constexpr int shared_bytes = tiles.shared_bytes(Policy::qk_dim, Policy::v_dim);
    static_assert(shared_bytes <= 227 * 1024);
    const auto map = Policy::is_packed ? gradtile::cuda::packed_tensor_map : gradtile::cuda::tensor_map;
    p.q = map(q, tiles.rows(), Shared::QTile::swizzle);
    p.k = map(k, tiles.keys, Shared::KTile::swizzle);
    p.v = map(v, tiles.keys, Shared::VTile::swizzle);
    p.o = map(o, 64, Shared::OTile::swizzle);
    const std::int64_t heads = q.size(0) * q.size(2);
    if constexpr (Policy::is_packed) {
        gradtile::cuda::use_device(ctx.device());
        divide_packed_rows<Policy>(p, heads, static_cast<cudaStream_t>(ctx.stream()));
    } else {
        divide_rows<Policy>(p, heads);
    }
    if constexpr (Policy::rule == HopperRule::row_ranges)
        launch_block_order<tiles.rows(), OrderedBlocks::rows>(ctx, p.row_ranges, p.mask,
                                                              static_cast<int>(q.size(0)), p.sizes);
    const int blocks = std::min(p.tasks, gradtile::cuda::processors_of(ctx));
    gradtile::cuda::launch(ctx, device::hopper_forward_kernel<T, Policy>, static_cast<unsigned>(blocks),
                           {static_cast<unsigned>(tiles.threads()), shared_bytes, /*starts_early=*/true}, p);
}

template <class T>
void launch_hopper_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                           HopperForwardParameters p, const Tiles& tiles, const Context& ctx) {
    const auto launch_rule = [&]<int qk_dim, int v_dim, bool is_packed>() {
        visit_hopper_rule(p.scores, static_cast<bool>(p.row_ranges), [&]<HopperRule rule>() {
            constexpr HopperRule policy_rule = kernel_rule(rule, qk_dim, is_packed);
            if constexpr (qk_dim == hopper_short_head_dim && !is_packed &&
                          policy_rule == HopperRule::products) {
                if (tiles.consumers == hopper_short_forward_tiles.consumers)
                    return launch_hopper_forward_policy<
                        T, HopperForwardPolicy<qk_dim, v_dim, is_packed, policy_rule,
                                               hopper_short_forward_tiles>>(q, k, v, o, p, ctx);
            }
            if constexpr (has_hopper_kernels(policy_rule, qk_dim, is_packed))
                launch_hopper_forward_policy<T, HopperForwardPolicy<qk_dim, v_dim, is_packed, policy_rule>>(
                    q, k, v, o, p, ctx);
        });
    };
    const auto launch = [&]<int qk_dim, int v_dim>() {
        if (p.packed) {
            launch_rule.template operator()<qk_dim, v_dim, true>();
        } else {
            launch_rule.template operator()<qk_dim, v_dim, false>();
        }
    };
    visit_head_dim(Bits16HeadDims{}, std::max(p.sizes.qk_dim, p.sizes.v_dim), [&]<int dim>(HeadDim<dim>) {
        if constexpr (dim == 192) {
            if (p.sizes.v_dim <= 128) return launch.template operator()<192, 128>();
        }
        launch.template operator()<dim, dim>();
    });
}

}  // namespace gradtile::attention::cuda
