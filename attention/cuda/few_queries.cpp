// Plans calls with few queries, and allocates scratch memory for their splits.
#include <gradtile/attention/cuda/few_queries.h>
#include <gradtile/attention/cuda/shared_memory_limits.h>
#include <gradtile/attention/internal/kernel_choice.h>
#include <gradtile/core/check.h>
#include <gradtile/core/internal/cuda_check.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cuda {
namespace {

/// Replaces the split count. Scratch memory is planned for limit_of_splits() at most.
void force_splits(FewQueriesPlan& plan, std::int64_t keys, int most) {
    const SplittableWork work = work_of(plan, keys);
    const KeySplits splits = work.split(
        std::clamp(most, 1, limit_of_splits(plan.blocks_per_split, work.key_blocks, plan.concurrent_blocks)));
    plan.splits = static_cast<int>(splits.count);
    plan.keys_per_split = static_cast<int>(splits.blocks_per_split * FewQueriesTiles::keys);
}

}  // namespace

FewQueriesPlan few_queries_plan(const Context& ctx, const ResolvedOptions& options, const Tensor& q,
                                const Tensor& k, int head_dim) {
    if (options.packed || q.elements() == 0 || k.elements() == 0) return {};
    if (!forced_kernel_choice().few_queries.value_or(true)) return {};
    const IndexRange visible = options.mask.visible_keys({0, q.size(1)});
    const FewQueriesShape shape{.batch = q.size(0),
                                .queries = q.size(1),
                                .keys = std::max<std::int64_t>(0, visible.end - visible.begin),
                                .heads = q.size(2),
                                .group = q.size(2) / k.size(2),
                                .head_dim = head_dim,
                                .rule_of_each_head = !options.scores.scores_are_products,
                                .is_f32 = q.dtype() == DType::f32};
    // Grids have at most 65,535 blocks on their second axis.
    if (shape.batch * shape.heads > 65535) return {};
    if (ctx.is_planning()) {
        FewQueriesPlan plan = plan_few_queries(shape, 1, shared_memory_limits[0]);
        if (plan) plan.splits = limit_of_splits(plan.blocks_per_split, shape.keys, max_concurrent_blocks);
        return plan;
    }
    gradtile::cuda::use_device(ctx.device());
    int processors = 0;
    gradtile::cuda::cuda_check(
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, ctx.device().index()));
    FewQueriesPlan plan = plan_few_queries(shape, processors, gradtile::cuda::shared_memory_of_a_block());
    if (const auto splits = forced_kernel_choice().splits; splits && plan)
        force_splits(plan, shape.keys, *splits);
    return plan;
}

std::string explain(const FewQueriesPlan& plan, int head_dim, const ResolvedOptions& options) {
    return concat("few queries: ", plan.rows, " rows of ", plan.heads_together, " heads together, ",
                  plan.splits, " splits of ", plan.keys_per_split, " keys, ",
                  plan.blocks_per_split * plan.splits, " thread blocks, at most ", plan.concurrent_blocks,
                  " at the same time; head dim ", head_dim,
                  options.scores.scores_are_products ? "" : ", with score rules");
}

SplitResults::SplitResults(const Context& ctx, const FewQueriesPlan& plan, const Tensor& v, const Tensor& lse)
    : all_rows_(lse.elements()), columns_((v.size(3) + 7) / 8 * 8) {
    const std::int64_t parts = plan.splits > 1 ? plan.splits : 0;
    o_ = empty(ctx, {parts, all_rows_, columns_}, DType::f32);
    lse_ = empty(ctx, {parts, all_rows_, 2}, DType::f32);
}

SplitParameters SplitResults::parameters(const FewQueriesPlan& plan, const Mask& mask) const {
    const IndexRange visible = mask.visible_keys({0, mask.queries});
    return {.heads_together = plan.heads_together,
            .splits = plan.splits,
            .keys_per_split = plan.keys_per_split,
            .first_key = static_cast<int>(visible.begin),
            .end_key = static_cast<int>(visible.end),
            .all_rows = all_rows_,
            .columns = static_cast<int>(columns_),
            .o = o_.data<float>(),
            .lse = reinterpret_cast<ExactLse*>(lse_.data<float>())};
}

}  // namespace gradtile::attention::cuda
