#pragma once
/// INTERNAL. What plan.cpp and plan_16bit.cpp share: one pass that is being planned, and the parts of a plan
/// that several families have.
#include <algorithm>

#include <gradtile/attention/cuda/common/few_queries.h>
#include <gradtile/attention/cuda/common/packed_shapes.h>
#include <gradtile/attention/cuda/plan.h>

namespace gradtile::attention::cuda {

template <class Choice>
auto tiles_for(int shared_bytes) {
    decltype(Choice::tiles(0)) tiles;
    visit_shared_memory<Choice>(shared_bytes,
                                [&]<int limit>(SharedMemory<limit>) { tiles = Choice::tiles(limit); });
    return tiles;
}

/// One pass that is being planned.
struct Call {
    const FlashProblem& problem;
    const ResolvedOptions& options;
    const GpuLimits& gpu;
    const KernelChoice& choice = options.kernels;
    const ScoreOptions& scores = options.scores;
    const Mask& mask = options.mask;
    bool is_forward = problem.pass == Pass::forward;
    std::int64_t batch_heads = problem.batch * problem.heads;

    bool is_packed() const { return static_cast<bool>(options.packed); }
    bool has_row_ranges() const { return static_cast<bool>(options.row_ranges); }
    /// Whether kernels need neither score rules nor row ranges.
    bool is_plain() const { return scores.scores_are_products && !has_row_ranges(); }
    bool is_empty() const {
        return batch_heads * problem.queries == 0 || problem.keys * problem.key_heads == 0;
    }
    Shape lse_shape() const { return {problem.batch, problem.heads, problem.queries}; }
    DType accumulator() const { return accumulator_of(problem.dtype); }
    int set_heads(std::int64_t heads, int by_policy) const {
        return std::clamp(choice.set_heads.value_or(by_policy), 1, std::max(1, static_cast<int>(heads)));
    }
    const char* rules_text() const {
        if (has_row_ranges())
            return scores.scores_are_products ? ", with row ranges" : ", with row ranges and score rules";
        return scores.scores_are_products ? "" : ", with score rules";
    }
    FlashPlan start(Family family, int head_dim, const char* why) const {
        return {.family = family,
                .pass = problem.pass,
                .rule = is_plain() ? RuleKind::none : RuleKind::any,
                .tiles = {.head_dim = head_dim, .shared_limit = gpu.shared_bytes},
                .is_packed = is_packed(),
                .rules = rules_text(),
                .why = why,
                .choice = choice};
    }
};

inline void add_scratch(FlashPlan& plan, ScratchUse use, const Shape& shape, DType dtype) {
    plan.scratch.push_back({use, shape, dtype});
}
inline void add_table(FlashPlan& plan, ScratchUse use, const Call& call, std::int64_t total) {
    add_scratch(plan, use, {packed_table_elements(call.options.packed, total)}, DType::i32);
}

/// Plans few queries. Without a GPU, scratch memory is planned for max_concurrent_blocks thread blocks.
FewQueriesPlan few_queries_plan(const Call& call, int head_dim);
void add_splits(FlashPlan& plan, const Call& call, const FewQueriesPlan& few_queries);
void add_row_ranges(FlashPlan& plan, const Call& call);

/// Plans flash2 for 16-bit tensors.
FlashPlan plan_16bit(const Call& call);

}  // namespace gradtile::attention::cuda
