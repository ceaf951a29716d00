// FlashAttention-2 forward pass in float32 on the GPU (Dao 2023, algorithm 1). Each thread block takes a
// block of query rows and loops over the K and V tiles.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include <gradtile/attention/cuda/common/exact_lse.h>
#include <gradtile/attention/cuda/f32/f32.h>
#include <gradtile/attention/cuda/f32/tiles.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/attention/cuda/common/block_sequence.cuh>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/attention/cuda/common/magnitude.cuh>
#include <gradtile/attention/cuda/common/mask.cuh>
#include <gradtile/attention/cuda/common/row_ranges.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/attention/cuda/common/split_float.cuh>
#include <gradtile/attention/cuda/common/task_order.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

using namespace device;

struct F32ForwardParameters {
    TensorView<const float> q, k, v;
    TensorView<float> o;
    float* lse;                       ///< [B, Hq, Sq], natural log
    float* lse_remainder;             ///< [B, Hq, Sq], or null
    const std::uint32_t* magnitudes;  ///< largest |q|, |k| and |v|: see measure()
    DeviceMask mask;
    Sizes sizes;
    int measured_sequences;  ///< sequences in `magnitudes`
    float scale_log2;        ///< log2(e) * scale
    ScoreOptions scores;
    PackedOffsets packed;
    PackedTasks row_tasks;  ///< the tasks (row blocks) if sequences are packed
    TaskOrder order;
    bool q_vectors, k_vectors, v_vectors;  ///< whether has_vector_rows() holds
    bool o_pairs;
    DeviceRowRanges row_ranges;
};

/// The forward kernel's tile sizes and shared-memory layout, fixed at compile time.
template <int head_dim_, int shared_limit, bool has_rule_>
struct F32ForwardPolicy {
    static constexpr int head_dim = head_dim_;
    /// Whether the kernel applies score rules and takes packed sequences and row ranges.
    static constexpr bool has_rule = has_rule_, may_be_packed = has_rule_, may_have_ranges = has_rule_;
    static constexpr F32ForwardTiles tiles = F32ForwardChoice<head_dim>::tiles(shared_limit);
    static constexpr int m_tiles = tiles.row_tiles, s_tiles = tiles.keys / 8, o_tiles = head_dim / 8;
    using QTile = Tile<tiles.rows(), head_dim>;
    using QPiece = Tile<2 * tiles.keys, head_dim>;  ///< Q rows that are copied at one time
    using KvTile = Tile<tiles.keys, head_dim>;
    // Offsets in shared memory, in bytes.
    static constexpr int q = 0, k = q + split_bytes<QTile>, v = k + split_bytes<KvTile>;
    static_assert(v + split_bytes<KvTile> == tiles.shared_bytes(head_dim));
};

/// o = factor * o + P V, a few columns at a time.
template <class VTile, int k_steps, int m_tiles, int o_tiles>
__device__ __forceinline__ void add_p_v(FragmentC (&o)[m_tiles][o_tiles], const float (&factor)[2 * m_tiles],
                                        const SplitA<m_tiles> (&p)[k_steps], const LanePointer<VTile>& v) {
    constexpr int group = 4;  // 8-column tiles at a time
#pragma unroll
    for (int column = 0; column < o_tiles; column += group) {
        SplitSum<m_tiles, group> sum;
        multiply_split_a_b(sum, p, v, column * 8);
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
#pragma unroll
            for (int n = 0; n < group; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    o[m][column + n][e] =
                        fmaf(o[m][column + n][e], factor[2 * m + e / 2], sum.value(m, n, e));
    }
}

/// Stores O = o / sum(P) and the LSE for a warp's rows; `row` is the lane's first row.
template <int m_tiles, int o_tiles, bool is_natural>
__device__ __forceinline__ void store_o(const F32ForwardParameters& p, const FragmentC (&o)[m_tiles][o_tiles],
                                        const OnlineSoftmax<m_tiles, is_natural>& softmax, float v_inverse,
                                        const BlockSequence& sequence, int head, int row) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const StridedRows<float> o_rows = sequence.queries(p.o, head);
    const std::int64_t first =
        std::int64_t{sequence.batch * p.sizes.heads + head} * p.mask.queries + sequence.first_query;
#pragma unroll
    for (int i = 0; i < 2 * m_tiles; ++i) {
        const int o_row = row + i / 2 * 16 + i % 2 * 8;
        const float sum = softmax.sum(i);
        if (o_row >= sequence.mask.queries) continue;
        const float inverse = sum == 0 ? 0.0f : v_inverse / sum;
        float* const to = o_rows.row(o_row);
#pragma unroll
        for (int n = 0; n < o_tiles; ++n) {
            const float* const pair = &o[i / 2][n][i % 2 * 2];
            store_pair(to, n * 8 + lane % 4 * 2, p.sizes.v_dim, pair[0] * inverse, pair[1] * inverse,
                       p.o_pairs);
        }
        if (lane % 4 != 0) continue;
        const ExactLse lse = softmax.lse(i, sum);
        store_lse(p, first + o_row, lse);
    }
}

/// Copies a Q block to shared memory, a few rows at a time.
template <class Policy>
__device__ __forceinline__ void copy_q(const F32ForwardParameters& p, std::uint32_t to,
                                       const StridedRows<const float>& q, int first_row, int valid_rows,
                                       float factor) {
    using QTile = typename Policy::QTile;
    using QPiece = typename Policy::QPiece;
#pragma unroll 1
    for (int row = 0; row < Policy::tiles.rows(); row += QPiece::rows) {
        SplitTile<QPiece, Policy::tiles.threads()> piece;
        piece.load(q, first_row + row, valid_rows - row, p.sizes.qk_dim, p.q_vectors);
        piece.store(to + row * QTile::row_bytes, factor, QTile::bytes);
    }
}

/// Tasks begin with the last rows, because with a causal mask these rows have the most work.
template <class Policy>
__device__ __forceinline__ RowBlock row_block_of_block(const F32ForwardParameters& p) {
    const int block = static_cast<int>(blockIdx.x);
    if (Policy::may_be_packed && p.packed) return RowBlock::from_tasks(p.mask, p.packed, p.row_tasks, block);
    const auto [batch_head, part] = p.order(block);
    return {BlockSequence::from_batch(p.mask, batch_head / p.sizes.heads), batch_head % p.sizes.heads,
            p.order.parts - 1 - part, true};
}

/// Which key blocks a row block's rows may see, as far as the row ranges say.
template <class Policy>
struct SeenKeys {
    HeadRowRanges ranges;
    int first_row, end_row, end_key;

    /// The first key block from `key` on.
    __device__ __forceinline__ int from(int key) const {
        constexpr int keys = Policy::tiles.keys;
        if (!ranges) return key;
        return next_seen_block(ranges.blocks, key / keys, (end_key + keys - 1) / keys, first_row, end_row) *
               keys;
    }
    /// Hides the pairs in a block that are outside the ranges. `row`: the warp's first.
    template <int m_tiles, int n_tiles>
    __device__ __forceinline__ void hide_others(FragmentC (&s)[m_tiles][n_tiles], int row, int key) const {
        if (ranges && !ranges.blocks[key / Policy::tiles.keys].see_all(row, row + m_tiles * 16))
            hide_unseen_pairs(s, ranges.keys + key, row);
    }
};

/// Adds the head's sink, if there is one, to the rows' sums.
template <class Policy, class Softmax>
__device__ __forceinline__ void add_sink(FragmentC (&o)[Policy::m_tiles][Policy::o_tiles], Softmax& softmax,
                                         const ScoreOptions& scores, int head) {
    if (scores.sink == nullptr) return;
    float factor[2 * Policy::m_tiles];
    softmax.add_sink(scores.sink[head * scores.sink_stride] * (Policy::has_rule ? 1.0f : log2_e), factor);
    scale_rows(o, factor);
}

template <class Policy>
__global__ void __launch_bounds__(Policy::tiles.threads(), Policy::tiles.blocks_per_sm)
    forward_kernel(const __grid_constant__ F32ForwardParameters p) {
    constexpr F32ForwardTiles tiles = Policy::tiles;
    constexpr int m_tiles = Policy::m_tiles, rows = tiles.rows(), keys = tiles.keys,
                  threads = tiles.threads();
    using QTile = typename Policy::QTile;
    using KvTile = typename Policy::KvTile;
    extern __shared__ __align__(1024) unsigned char shared[];
    const std::uint32_t base = shared_address(shared), k_tile = base + Policy::k, v_tile = base + Policy::v;

    const RowBlock own = row_block_of_block<Policy>(p);
    if (!own.exists) return;
    const int head = own.head, row_block = own.number;
    __shared__ BlockSequence shared_sequence;
    if constexpr (Policy::may_be_packed) {
        if (threadIdx.x == 0) shared_sequence = own.sequence;
        __syncthreads();
    }
    const BlockSequence& sequence = Policy::may_be_packed ? shared_sequence : own.sequence;
    const DeviceMask& mask = sequence.mask;
    const int key_head = head / p.sizes.group;
    const int first_row = row_block * rows;
    // With a causal mask the last warp has the most work. Every second block numbers its warps in reverse
    // order, so that all schedulers get about the same work.
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int warp_row = (row_block % 2 == 0 ? warp : tiles.warps - 1 - warp) * m_tiles * 16;
    const int lane_row = first_row + warp_row + lane / 4;
    const StridedRows<const float> k_rows = sequence.keys(p.k, key_head);
    const StridedRows<const float> v_rows = sequence.keys(p.v, key_head);

    const int key_heads = p.sizes.heads / p.sizes.group;
    const auto range = [&](int tensor) {
        return range_of(p.magnitudes, tensor, p.measured_sequences, sequence.index, key_heads, key_head);
    };
    const PowerOfTwo q_range = range(0), k_range = range(1), v_range = range(2);
    const float score_factor = p.scale_log2 * q_range.inverse * k_range.inverse;
    __shared__ SharedRule rule;
    if constexpr (Policy::has_rule) {
        if (threadIdx.x == 0) rule.set(rule_of<float>(sequence, p.scores, head));
    }

    const int end_row = min(first_row + rows, mask.queries), end_key = mask.end_key(end_row - 1);
    SeenKeys<Policy> seen{{}, first_row, end_row, end_key};
    if constexpr (Policy::may_have_ranges)
        seen.ranges =
            p.row_ranges.of(sequence.batch, head, sequence.first_key, p.packed ? sequence.index : 0);
    const int first_key = seen.from(mask.first_key(first_row) / keys * keys);

    SplitTile<KvTile, threads> next;  // the next K or V tile
    next.load(k_rows, first_key, end_key - first_key, p.sizes.qk_dim, p.k_vectors);
    copy_q<Policy>(p, base, sequence.queries(p.q, head), first_row, mask.queries - first_row, q_range.factor);
    next.store(k_tile, k_range.factor);
    __syncthreads();

    OnlineSoftmax<m_tiles, Policy::has_rule> softmax;
    FragmentC o[m_tiles][Policy::o_tiles];
    clear(o);
    int next_key;
    for (int key = first_key; key < end_key; key = next_key) {
        next_key = seen.from(key + keys);
        const bool sees_any = mask.sees_any(first_row + warp_row, m_tiles * 16, key, keys);
        SplitA<m_tiles> probabilities[Policy::s_tiles / 2];
        float factor[2 * m_tiles];

        const std::uint32_t tiles_base = rematerialize(base);
        const auto q_lane = LanePointer<QTile>::stacked(tiles_base + Policy::q);
        const auto k_lane = LanePointer<KvTile>::paired(tiles_base + Policy::k);
        const auto v_lane = LanePointer<KvTile>::stacked(tiles_base + Policy::v);
        next.load(v_rows, key, end_key - key, p.sizes.v_dim, p.v_vectors);
        if (sees_any) {
            FragmentC s[m_tiles][Policy::s_tiles];
            multiply_split_a_bt<Policy::head_dim>(s, q_lane, warp_row, k_lane, 0);
            scale(s, score_factor);
            if constexpr (Policy::has_rule) {
                scale(s, ln_2);
                apply_rule<float>(s, rule.get(), first_row + warp_row, key, mask.queries, mask.keys);
            }
            if (!mask.sees_all(first_row + warp_row, m_tiles * 16, key, keys))
                mask_scores(s, mask, first_row + warp_row, key);
            seen.hide_others(s, first_row + warp_row, key);
            softmax.update(s, factor);
            if constexpr (Policy::has_rule) drop(s, rule.get(), first_row + warp_row, key);
            split_operands_a(probabilities, s);
        }
        next.store(v_tile, v_range.factor);
        __syncthreads();  // V is in shared memory; all warps have read K

        next.load(k_rows, next_key, end_key - next_key, p.sizes.qk_dim, p.k_vectors);
        if (sees_any) add_p_v(o, factor, probabilities, v_lane);
        next.store(k_tile, k_range.factor);
        __syncthreads();  // the next K is in shared memory; all warps have read V
    }
    float v_factor = v_range.inverse;
    if constexpr (Policy::has_rule) v_factor *= rule.get().dropout_scale;
    if (!sequence.is_rest) add_sink<Policy>(o, softmax, p.scores, head);
    store_o(p, o, softmax, v_factor, sequence, head, lane_row);
}

template <int head_dim, bool has_rule>
void launch_forward(const Context& ctx, F32ForwardParameters parameters, int shared_limit,
                    std::int64_t batch_heads) {
    gradtile::cuda::use_device(ctx.device());
    visit_shared_memory<F32ForwardChoice<head_dim>>(shared_limit, [&]<int limit>(SharedMemory<limit>) {
        using Policy = F32ForwardPolicy<head_dim, limit, has_rule>;
        constexpr F32ForwardTiles tiles = Policy::tiles;
        int row_blocks = (parameters.mask.queries + tiles.rows() - 1) / tiles.rows();
        if (parameters.packed) {
            parameters.row_tasks =
                make_packed_tasks(static_cast<cudaStream_t>(ctx.stream()), parameters.packed,
                                  PackedOrder::last_rows_first, tiles.rows(), parameters.row_tasks.first);
            row_blocks = parameters.row_tasks.count;
        }
        const std::int64_t blocks = batch_heads * row_blocks;
        check(blocks <= INT32_MAX, "attention: ", blocks, " blocks of rows; CUDA launches at most 2^31 - 1");
        const Sizes& sizes = parameters.sizes;
        const std::int64_t key_bytes =
            static_cast<std::int64_t>(sizeof(float)) * (sizes.qk_dim + sizes.v_dim);
        parameters.order = TaskOrder(batch_heads, row_blocks, parameters.mask.keys * key_bytes / sizes.group);
        gradtile::cuda::launch(
            ctx, forward_kernel<Policy>, dim3(static_cast<unsigned>(blocks)),
            {.threads = unsigned{tiles.threads()}, .shared_bytes = tiles.shared_bytes(head_dim)}, parameters);
    });
}

}  // namespace

void f32_forward(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                 const Saved& saved) {
    const Tensor &q_in = saved.q, &k_in = saved.k, &v_in = saved.v, &o_out = saved.o, &lse = saved.lse;
    const DeviceMask mask(options.mask);
    const Readable q(ctx, q_in), k(ctx, k_in), v(ctx, v_in);
    const Writable o(ctx, o_out, DType::f32);
    const Scratch scratch(ctx, plan);
    if (ctx.is_planning() || lse.elements() == 0) return;
    for (const Readable* x : {&q, &k, &v}) x->load(ctx);
    const PackedOffsets packed(options);
    const Tensor magnitudes = scratch[ScratchUse::magnitudes];
    measure(ctx, magnitudes, packed, {{q.tensor(), true}, {k.tensor()}, {v.tensor()}});
    const F32ForwardParameters parameters{
        .q = tensor_view<const float>(q.tensor()),
        .k = tensor_view<const float>(k.tensor()),
        .v = tensor_view<const float>(v.tensor()),
        .o = tensor_view<float>(o.tensor()),
        .lse = lse.data<float>(),
        .lse_remainder = data_or_null<float>(saved.lse_remainder),
        .magnitudes = largest_of(magnitudes),
        .mask = mask,
        .sizes = sizes_of(q_in, k_in, v_in),
        .measured_sequences = static_cast<int>(magnitudes.size(1)),
        .scale_log2 = static_cast<float>(options.scale * std::numbers::log2e),
        .scores = options.scores,
        .packed = packed,
        .row_tasks = {packed_tasks_in(scratch[ScratchUse::row_tasks])},
        .order = {},
        .q_vectors = has_vector_rows(q.tensor()),
        .k_vectors = has_vector_rows(k.tensor()),
        .v_vectors = has_vector_rows(v.tensor()),
        .o_pairs = has_vector_rows(o.tensor(), 8),
        .row_ranges = launch_row_ranges(ctx, options, q_in.size(0), q_in.size(2), plan.tiles.keys,
                                        scratch[ScratchUse::row_ranges])};
    const std::int64_t batch_heads = q_in.size(0) * q_in.size(2);
    visit_head_dim(
        F32HeadDims{}, std::max(parameters.sizes.qk_dim, parameters.sizes.v_dim),
        [&]<int head_dim>(HeadDim<head_dim>) {
            if (options.scores.scores_are_products && !packed && !parameters.row_ranges) {
                launch_forward<head_dim, false>(ctx, parameters, plan.tiles.shared_limit, batch_heads);
            } else {
                launch_forward<head_dim, true>(ctx, parameters, plan.tiles.shared_limit, batch_heads);
            }
        });
    o.store(ctx);
    find_non_finite(ctx, options, saved.o);
}

}  // namespace gradtile::attention::cuda
