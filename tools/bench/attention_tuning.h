#pragma once
/// The tuner of `gradtile bench attention --tune`: times every plan that this build has for a pass, and
/// checks the results.
#include <functional>
#include <string>
#include <vector>

#include <gradtile/attention/internal/flash_plan.h>
#include <gradtile/attention/internal/result_bounds.h>
#include <gradtile/tools/bench/measure.h>
#include <gradtile/tools/command_line/table.h>

namespace gradtile::cli {

/// A tensor that a pass writes.
struct TunedResult {
    const char* name;
    std::function<Tensor()> tensor;  ///< called after the pass
    attention::ResultBound bound;    ///< bounds the difference between two plans' results
};

struct TunedPass {
    const char* name;
    double flops;
    std::function<void(const attention::KernelChoice& kernels)> run;  ///< with Options::kernels
    std::vector<TunedResult> results;
    std::vector<attention::FlashPlan> plans;  ///< the first is the library's choice
};

/// The columns that describe a plan.
std::vector<Column> tuning_columns();
/// Runs and times all plans, and adds a row for each, in list order: first `shape`, then tuning_columns().
/// Throws Error at the end if a result differs from the first plan's result by more than the bound.
void tune(const Context& ctx, const TunedPass& pass, const Sampling& sampling, const std::vector<Cell>& shape,
          Table& table);

}  // namespace gradtile::cli
