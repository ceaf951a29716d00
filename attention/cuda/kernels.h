#pragma once
/// INTERNAL. The CUDA implementations of Algorithm::flash: a forward and a backward function for each dtype
/// family, between which attention/cuda/dispatch.cpp chooses. Arguments and dry runs are as in
/// attention_backend.h. All work is enqueued on ctx.stream(); the host does not wait.
#include <gradtile/attention/cuda/few_queries.h>
#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention::cuda {

// ForwardFunction, BackwardFunction and ExplainFunction are function types, so the following lines declare
// functions.

/// float64: single pairs without tensor cores, for gradient checks on the GPU.
ForwardFunction flash_f64_forward;
BackwardFunction flash_f64_backward;

/// float32 on tensor cores, with float32 accuracy.
ForwardFunction flash_f32_forward;
BackwardFunction flash_f32_backward;
ExplainFunction explain_f32_forward;
/// The forward pass for calls with few queries. `plan` comes from few_queries_plan().
void few_queries_f32_forward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                             const FewQueriesPlan& plan);

/// bfloat16 and float16.
ForwardFunction flash_16bit_forward;
BackwardFunction flash_16bit_backward;
ExplainFunction explain_16bit_forward;

}  // namespace gradtile::attention::cuda
