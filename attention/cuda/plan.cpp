// plan(): which family computes a pass, and the plans for float32, float64 and the algorithms of the
// literature.
#include <gradtile/attention/cuda/plan.h>

#include <algorithm>

#include <gradtile/attention/cuda/common/row_ranges_shapes.h>
#include <gradtile/attention/cuda/f32/tiles.h>
#include <gradtile/attention/cuda/plan_call.h>
#include <gradtile/core/internal/unknown_enumerator.h>

namespace gradtile::attention::cuda {

FewQueriesPlan few_queries_plan(const Call& call, int head_dim) {
    const FlashProblem& problem = call.problem;
    if (call.is_packed() || call.is_empty() || !call.choice.few_queries.value_or(true)) return {};
    if (call.has_row_ranges()) return {};  // the kernels for few queries have no code for them
    const IndexRange visible = call.mask.visible_keys({0, problem.queries});
    const FewQueriesShape shape{.batch = problem.batch,
                                .queries = problem.queries,
                                .keys = std::max<std::int64_t>(0, visible.end - visible.begin),
                                .heads = problem.heads,
                                .group = problem.group(),
                                .head_dim = head_dim,
                                .rule_of_each_head = !call.scores.scores_are_products,
                                .is_f32 = problem.dtype == DType::f32};
    // Grids have at most 65,535 blocks on their second axis.
    if (shape.batch * shape.heads > 65535) return {};
    const GpuLimits& gpu = call.gpu;
    FewQueriesPlan plan = gpu.is_known ? plan_few_queries(shape, gpu.processors, gpu.shared_bytes)
                                       : plan_few_queries(shape, 1, shared_memory_limits[0]);
    if (!plan) return {};
    if (!gpu.is_known) {
        plan.splits = limit_of_splits(plan.blocks_per_split, shape.keys, max_concurrent_blocks);
    } else if (call.choice.splits) {
        const SplittableWork work = work_of(plan, shape.keys);
        const int limit = limit_of_splits(plan.blocks_per_split, work.key_blocks, plan.concurrent_blocks);
        set_splits(plan, work.split(std::clamp(*call.choice.splits, 1, limit)));
    }
    return plan;
}
void add_splits(FlashPlan& plan, const Call& call, const FewQueriesPlan& few_queries) {
    const FlashProblem& problem = call.problem;
    plan.schedule.few_queries = few_queries;
    const std::int64_t parts = few_queries.splits > 1 ? few_queries.splits : 0,
                       rows = call.batch_heads * problem.queries;
    add_scratch(plan, ScratchUse::split_o, {parts, rows, rounded_up(problem.v_dim, 8)}, DType::f32);
    add_scratch(plan, ScratchUse::split_lse, {parts, rows, 2}, DType::f32);
}

void add_row_ranges(FlashPlan& plan, const Call& call) {
    const RowRanges& ranges = call.options.row_ranges;
    const FlashProblem& problem = call.problem;
    const std::int64_t elements =
        ranges ? row_ranges_elements(ranges, problem.batch, problem.heads, problem.queries, problem.keys,
                                     call.options.packed)
               : 0;
    add_scratch(plan, ScratchUse::row_ranges, {elements}, DType::i32);
}

namespace {

// ---- naive, pairwise, memory_efficient, flash1 ----

FlashPlan plan_naive(const Call& call) {
    const FlashProblem& problem = call.problem;
    FlashPlan plan = call.start(Family::naive, problem.head_dim(), "the option algorithm is naive");
    const Shape scores{problem.batch * problem.key_heads,
                       problem.key_heads == 0 ? 0 : problem.group() * problem.queries, problem.keys};
    add_scratch(plan, ScratchUse::scores, scores, problem.dtype);
    if (call.is_forward) return plan;
    add_scratch(plan, ScratchUse::d_scores, scores, problem.dtype);
    add_scratch(plan, ScratchUse::derivatives, call.scores.changes_products() ? scores : Shape{0},
                problem.dtype);
    add_scratch(plan, ScratchUse::delta, problem.writes_d_sink ? call.lse_shape() : Shape{0},
                call.accumulator());
    return plan;
}

FlashPlan plan_pairwise(const Call& call) {
    FlashPlan plan =
        call.start(Family::pairwise, call.problem.head_dim(), "tensor cores are too coarse for float64");
    if (!call.problem.writes_d_sink) return plan;
    add_scratch(plan, ScratchUse::lse, call.lse_shape(), DType::f64);
    add_scratch(plan, ScratchUse::delta, call.lse_shape(), DType::f64);
    return plan;
}

FlashPlan plan_literature(const Call& call) {
    const FlashProblem& problem = call.problem;
    const bool is_flash1 = call.options.algorithm == Algorithm::flash1, is_16_bits = is_16_bit(problem.dtype);
    FlashPlan plan =
        call.start(is_flash1 ? Family::flash1 : Family::memory_efficient, problem.head_dim(),
                   is_flash1 ? "the option algorithm is flash1" : "the option algorithm is memory_efficient");
    if (call.is_forward) return plan;
    // memory_efficient without a fixed order has a thread block for each row block. flash1 divides a head's
    // keys between several thread blocks if there are too few heads; each has at least min_keys keys.
    constexpr std::int64_t enough_blocks = 128, min_keys = 512;
    const std::int64_t heads = std::max<std::int64_t>(1, problem.batch * problem.key_heads),
                       flash1_splits =
                           std::clamp<std::int64_t>(ceil_div(enough_blocks, heads), 1,
                                                    std::max<std::int64_t>(1, problem.keys / min_keys));
    plan.schedule.splits = is_flash1 ? static_cast<int>(flash1_splits) : call.options.deterministic ? 1 : 0;
    const std::int64_t d_q_parts = is_flash1 && flash1_splits > 1 ? flash1_splits : 0;
    const auto is_written = [](const Tensor& x) { return x.defined() && x.elements() > 0; };
    const bool has_remainder = call.scores.has_biases() && (is_flash1 || problem.has_lse_remainder),
               has_d_bias = std::ranges::any_of(problem.d_biases, is_written);
    const DType dtype = call.accumulator();
    const Shape lse = call.lse_shape();
    add_scratch(plan, ScratchUse::delta, lse, dtype);
    add_scratch(plan, ScratchUse::lse, lse, dtype);
    add_scratch(plan, ScratchUse::d_q_parts,
                {d_q_parts, problem.batch, problem.queries, problem.heads,
                 is_16_bits ? rounded_up(problem.qk_dim, 8) : problem.qk_dim},
                dtype);
    add_scratch(plan, ScratchUse::remainders, has_remainder ? lse : Shape{0}, dtype);
    add_scratch(plan, ScratchUse::statistics,
                {2, is_16_bits && has_d_bias ? call.batch_heads : 0,
                 rounded_up(problem.queries, backward_row_padding)},
                DType::f32);
    return plan;
}

// ---- float32 ----

FlashPlan plan_f32(const Call& call) {
    const FlashProblem& problem = call.problem;
    const int head_dim = padded_head_dim(F32HeadDims{}, problem.head_dim());
    FlashPlan plan = call.start(Family::f32, head_dim, "float32");
    if (call.is_forward) {
        if (const FewQueriesPlan few_queries = few_queries_plan(call, head_dim)) {
            plan.family = Family::few_f32;
            plan.why = "float32, few queries";
            add_splits(plan, call, few_queries);
            return plan;
        }
    }
    visit_head_dim(F32HeadDims{}, head_dim, [&]<int dim>(HeadDim<dim>) {
        if (call.is_forward) {
            const F32ForwardTiles tiles = tiles_for<F32ForwardChoice<dim>>(call.gpu.shared_bytes);
            plan.tiles.rows = tiles.rows();
            plan.tiles.keys = tiles.keys;
        } else {
            const F32BackwardTiles tiles = tiles_for<F32BackwardChoice<dim>>(call.gpu.shared_bytes);
            plan.tiles.rows = tiles.rows;
            plan.tiles.keys = tiles.keys();
        }
    });
    const PackedSequences& packed = call.options.packed;
    const auto add_magnitudes = [&](std::int64_t tensors) {
        const std::int64_t sequences = packed ? packed.count + 1 : problem.batch;
        add_scratch(plan, ScratchUse::magnitudes, {tensors, sequences, problem.key_heads}, DType::i32);
    };
    if (call.is_forward) {
        add_magnitudes(3);
        add_table(plan, ScratchUse::row_tasks, call, problem.queries);
        add_row_ranges(plan, call);
        return plan;
    }
    add_row_ranges(plan, call);
    add_scratch(plan, ScratchUse::lse, call.lse_shape(), DType::f32);
    add_scratch(plan, ScratchUse::delta, call.lse_shape(), DType::f32);
    add_magnitudes(problem.has_d_lse ? 5 : 4);
    add_table(plan, ScratchUse::key_tasks, call, problem.keys);
    if (call.options.deterministic)
        add_scratch(plan, ScratchUse::turns, {1 + call.batch_heads * f32_turn_steps(packed, problem.queries)},
                    DType::i32);
    return plan;
}

}  // namespace

FlashPlan plan(const FlashProblem& problem, const ResolvedOptions& options, const GpuLimits& gpu) {
    const Call call{problem, options, gpu};
    switch (options.algorithm) {
        case Algorithm::naive:
            return plan_naive(call);
        case Algorithm::memory_efficient:
        case Algorithm::flash1:
            return plan_literature(call);
        case Algorithm::flash2:
            if (problem.dtype == DType::f64) return plan_pairwise(call);
            if (problem.dtype == DType::f32) return plan_f32(call);
            return plan_16bit(call);
    }
    refuse_unknown("attention: unknown algorithm");
}

}  // namespace gradtile::attention::cuda
