#pragma once
/// The tuner of `gradtile bench attention --tune`: times every kernel candidate that this build has for a
/// pass, and checks the results.
#include <functional>
#include <string>
#include <vector>

#include <gradtile/attention/internal/kernel_candidates.h>
#include <gradtile/attention/internal/result_bounds.h>
#include <gradtile/tools/bench/measure.h>
#include <gradtile/tools/command_line/table.h>

namespace gradtile::cli {

/// A tensor that a pass writes.
struct TunedResult {
    const char* name;
    std::function<Tensor()> tensor;  ///< called after the pass
    attention::ResultBound bound;    ///< bounds the difference between two candidates' results
};

struct TunedPass {
    const char* name;
    double flops;
    std::function<void()> run;
    std::vector<TunedResult> results;
    std::vector<attention::KernelCandidate> candidates;  ///< the first is the policy's
};

/// The columns that describe a candidate.
std::vector<Column> tuning_columns();
/// Runs and times all candidates, and adds a row for each, in list order: first `shape`, then
/// tuning_columns(). Throws Error at the end if a result differs from the policy candidate's result by more
/// than the bound.
void tune(const Context& ctx, const TunedPass& pass, const Sampling& sampling, const std::vector<Cell>& shape,
          Table& table);

}  // namespace gradtile::cli
