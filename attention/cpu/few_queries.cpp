// The driver for the few-queries kernels: divides K/V heads and keys into tasks, and merges the parts.
#include <gradtile/attention/cpu/few_queries.h>

#include <gradtile/attention/cpu/call_ranges.h>
#include <gradtile/attention/cpu/selection.h>
#include <gradtile/attention/cpu/task_scratch.h>
#include <gradtile/attention/internal/kernel_views.h>

namespace gradtile::attention::cpu {
namespace {

/// Returns one head's rows in a [B, S, H, D] tensor.
template <class T>
StridedRows<const T> rows_of_head(const Tensor& x, std::int64_t batch, std::int64_t head) {
    return {x.data<T>() + batch * x.stride(0) + head * x.stride(2), x.stride(1)};
}

/// Returns all heads' rules, [B, Hq], without sinks, which merge_key_parts() adds. The list is empty if the
/// call sets no option that changes scores and the backward pass's scores are in base 2.
std::vector<ScoreRule<float>> rules_without_sinks(const ScoreOptions& scores, std::int64_t batch,
                                                  std::int64_t heads, bool scores_in_base_2) {
    std::vector<ScoreRule<float>> rules;
    if (scores.plain && scores_in_base_2) return rules;
    for (std::int64_t b = 0; b < batch; ++b)
        for (std::int64_t h = 0; h < heads; ++h) {
            rules.push_back(scores.rule_of<float>(b, h));
            rules.back().sink = -std::numeric_limits<float>::infinity();
        }
    return rules;
}

/// Calls with fewer keys use the kernels for many queries: such a call takes a few microseconds with either
/// kernels.
constexpr std::int64_t min_keys_of_few_queries = 16;

}  // namespace

template <class T>
FewQueriesPlan few_queries_plan(const ResolvedOptions& options, const Tensor& q, const Tensor& k) {
    const std::int64_t batch = q.size(0), queries = q.size(1), heads = q.size(2), key_heads = k.size(2);
    if (chosen_few_queries_kernels<T>() == nullptr || options.packed || batch * heads == 0 || queries < 1 ||
        queries > max_queries_of_few_rows)
        return {};
    const IndexRange visible = options.mask.visible_keys({0, queries});
    if (visible.end - visible.begin < min_keys_of_few_queries) return {};
    const std::int64_t together = heads_together(heads / key_heads, queries);
    return {.heads_together = together, .parts = divide_keys(options.mask, batch * heads / together)};
}

template <class T>
void few_queries_forward(const Context& ctx, const FewQueriesPlan& plan, const ResolvedOptions& options,
                         const Saved& saved) {
    const Tensor &q_in = saved.q, &k_in = saved.k, &v_in = saved.v, &o_out = saved.o;
    const FewQueriesKernels<T>& kernels = *chosen_few_queries_kernels<T>();
    const std::int64_t heads = q_in.size(2), group = heads / k_in.size(2);
    const std::int64_t together = plan.heads_together, parts = plan.parts.count;
    const std::int64_t tasks_of_batch = heads / together * parts, tasks = q_in.size(0) * tasks_of_batch;
    const Geometry geometry{
        .d_qk = q_in.size(3), .d_v = v_in.size(3), .scale = options.scale, .mask = options.mask};
    const Readable q(ctx, q_in), k(ctx, k_in), v(ctx, v_in);
    const Writable o(ctx, o_out, q_in.dtype());
    const TaskScratch scratch(ctx, tasks, kernels.scratch_bytes(geometry, together * q_in.size(1)));
    const PartResults<float> results(ctx, parts, q_in, v_in.size(3));
    const CallRanges call_ranges(ctx, options, q_in);
    if (ctx.is_planning()) return;
    const auto rules =
        rules_without_sinks(options.scores, q_in.size(0), heads, chosen_kernels<T>().scores_in_base_2);
    const std::vector<KeyRanges> ranges = call_ranges.load(ctx, sequences_of(options, q_in));
    for (const Readable* x : {&q, &k, &v}) x->load(ctx);
    scratch.clear();
    parallel_for(ctx, tasks, [&](std::int64_t task) {
        const std::int64_t b = task / tasks_of_batch, part = task % parts;
        const std::int64_t h = task % tasks_of_batch / parts * together;
        const TaskScratch::Piece piece(scratch);
        kernels.forward({.geometry = &geometry,
                         .heads = together,
                         .q = rows_of_head<T>(q.tensor(), b, h),
                         .q_head_stride = q.tensor().stride(2),
                         .k = rows_of_head<T>(k.tensor(), b, h / group),
                         .v = rows_of_head<T>(v.tensor(), b, h / group),
                         .part = plan.parts.part(part),
                         .rules = rules.empty() ? nullptr : rules.data() + b * heads + h,
                         .ranges = ranges.empty() ? nullptr : ranges.data() + b * heads + h,
                         .o = results.o(part, b, h).data,
                         .softmax = results.softmax(part, b, h)},
                        piece.data());
    });
    merge_key_parts<T>(ctx, plan.parts, results, options.scores, saved, o.tensor());
    o.store(ctx);
}

template <class T>
FewQueriesProducts<T>::FewQueriesProducts(const ResolvedOptions& options, const Geometry& geometry,
                                          const Tensor& q, const Tensor& k, std::int64_t keys) {
    const FewQueriesPlan plan = few_queries_plan<T>(options, q, k);
    if (!plan) return;
    const std::int64_t rows = q.size(1) * (q.size(2) / k.size(2));
    heads_together_ = plan.heads_together;
    row_stride_ = ceil_div(keys, std::int64_t{64}) * 64;
    rows_bytes_ = static_cast<std::size_t>(rows * row_stride_) * sizeof(float);
    kernel_bytes_ =
        chosen_few_queries_kernels<T>()->scratch_bytes(geometry, heads_together_ * geometry.mask.queries);
}

template <class T>
StridedRows<const float> FewQueriesProducts<T>::compute(const BackwardTask<T>& task,
                                                        std::byte* scratch) const {
    if (heads_together_ == 0) return {};
    const StridedRows<float> rows{reinterpret_cast<float*>(scratch), row_stride_};
    for (std::int64_t head = 0; head < task.group; head += heads_together_)
        chosen_few_queries_kernels<T>()->multiply(
            {.geometry = task.geometry,
             .heads = heads_together_,
             .q = {task.q.data + head * task.q_head_stride, task.q.stride},
             .q_head_stride = task.q_head_stride,
             .k = task.k,
             .v = task.v,
             .part = task.keys},
            {rows.row(head * task.geometry->mask.queries), row_stride_}, scratch + rows_bytes_);
    return {rows.data, rows.stride};
}

template <class T>
std::string explain(const FewQueriesPlan& plan, const Tensor& q) {
    return concat("few queries: ", chosen_few_queries_kernels<T>()->name, " kernels, ",
                  plan.heads_together * q.size(1), " rows of ", plan.heads_together, " heads together, ",
                  q.size(0) * q.size(2) / plan.heads_together * plan.parts.count, " tasks,");
}

template FewQueriesPlan few_queries_plan<double>(const ResolvedOptions&, const Tensor&, const Tensor&);
template FewQueriesPlan few_queries_plan<float>(const ResolvedOptions&, const Tensor&, const Tensor&);
template FewQueriesPlan few_queries_plan<bfloat16>(const ResolvedOptions&, const Tensor&, const Tensor&);
template FewQueriesPlan few_queries_plan<float16>(const ResolvedOptions&, const Tensor&, const Tensor&);
template void few_queries_forward<float>(const Context&, const FewQueriesPlan&, const ResolvedOptions&,
                                         const Saved&);
template void few_queries_forward<bfloat16>(const Context&, const FewQueriesPlan&, const ResolvedOptions&,
                                            const Saved&);
template void few_queries_forward<float16>(const Context&, const FewQueriesPlan&, const ResolvedOptions&,
                                           const Saved&);
template class FewQueriesProducts<double>;
template class FewQueriesProducts<float>;
template class FewQueriesProducts<bfloat16>;
template class FewQueriesProducts<float16>;
template std::string explain<float>(const FewQueriesPlan&, const Tensor&);
template std::string explain<bfloat16>(const FewQueriesPlan&, const Tensor&);
template std::string explain<float16>(const FewQueriesPlan&, const Tensor&);

}  // namespace gradtile::attention::cpu
