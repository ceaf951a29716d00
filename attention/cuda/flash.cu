// Attention on a GPU: describes a pass in numbers, plans it and runs the plan.
#include <gradtile/attention/cuda/passes.h>
#include <gradtile/attention/cuda/plan.h>
#include <gradtile/attention/cuda/sm90/hopper.h>
#include <gradtile/core/cuda/internal/tensor_map.h>
#include <gradtile/core/internal/unknown_enumerator.h>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

GpuLimits limits_of(const Context& ctx) {
    if (ctx.is_planning()) return {.is_known = false, .why_no_sm90 = "a dry run does not know the GPU"};
    gradtile::cuda::use_device(ctx.device());
    return {.processors = gradtile::cuda::processors_of(ctx),
            .shared_bytes = gradtile::cuda::shared_memory_of_a_block(),
            .why_no_sm90 = why_no_sm90(ctx.device()),
            .has_candidates = has_tile_candidates()};
}

/// Why TMA cannot address a tensor; null if it can. A tensor without vector rows is copied first.
const char* why_no_map(const Tensor& x, bool is_packed) {
    if (!x.defined() || !device::has_vector_rows(x)) return nullptr;
    if (!gradtile::cuda::has_tensor_map(x)) return "TMA cannot read the strides";
    if (is_packed && !gradtile::cuda::has_packed_tensor_map(x))
        return "packed sequences lie too low in memory";
    return nullptr;
}
const char* why_no_maps(std::initializer_list<Tensor> tensors, bool is_packed) {
    for (const Tensor& x : tensors)
        if (const char* const why_not = why_no_map(x, is_packed)) return why_not;
    return nullptr;
}

FlashProblem problem_of(Pass pass, const ResolvedOptions& options, const Saved& saved,
                        const OutputGradients& d_out, const Gradients& into) {
    const Tensor &q = saved.q, &k = saved.k, &v = saved.v;
    const bool is_packed = static_cast<bool>(options.packed), is_16_bits = is_16_bit(q.dtype());
    const char* const no_input_maps = is_16_bits ? why_no_maps({q, k, v}, is_packed) : nullptr;
    const char* const no_other_maps =
        is_16_bits ? why_no_maps({saved.o, d_out.o, into.k, into.v}, is_packed) : nullptr;
    return {.pass = pass,
            .dtype = q.dtype(),
            .batch = q.size(0),
            .queries = q.size(1),
            .keys = k.size(1),
            .heads = q.size(2),
            .key_heads = k.size(2),
            .qk_dim = q.size(3),
            .v_dim = v.size(3),
            .why_no_input_maps = no_input_maps,
            .why_no_maps = no_input_maps != nullptr ? no_input_maps : no_other_maps,
            .has_lse_remainder = saved.lse_remainder.defined(),
            .has_d_lse = d_out.lse.defined(),
            .writes_d_sink = into.sink.defined(),
            .d_biases = into.biases};
}

void run(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options, const Saved& saved) {
    switch (plan.family) {
        case Family::naive:
            return naive_forward(ctx, plan, options, saved);
        case Family::pairwise:
            return pairwise_forward(ctx, plan, options, saved);
        case Family::f32:
            return f32_forward(ctx, plan, options, saved);
        case Family::few_f32:
            return few_queries_f32_forward(ctx, plan, options, saved);
        case Family::sm80:
        case Family::few_sm80:
        case Family::sm90:
        case Family::few_sm90:
            return flash_16bit_forward(ctx, plan, options, saved);
        case Family::memory_efficient:
        case Family::flash1:
            return literature_forward(ctx, plan, options, saved);
    }
    refuse_unknown("attention: unknown family of kernels");
}

void run(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options, const Saved& saved,
         const OutputGradients& d_out, const Gradients& into) {
    switch (plan.family) {
        case Family::naive:
            return naive_backward(ctx, plan, options, saved, d_out, into);
        case Family::pairwise:
            return pairwise_backward(ctx, plan, options, saved, d_out, into);
        case Family::f32:
            return f32_backward(ctx, plan, options, saved, d_out, into);
        case Family::sm80:
        case Family::sm90:
            return flash_16bit_backward(ctx, plan, options, saved, d_out, into);
        case Family::memory_efficient:
        case Family::flash1:
            return literature_backward(ctx, plan, options, saved, d_out, into);
        case Family::few_f32:
        case Family::few_sm80:
        case Family::few_sm90:
            break;
    }
    refuse_unknown("attention: unknown family of backward kernels");
}

}  // namespace

bool has_tile_candidates() {
#ifdef GRADTILE_HAVE_CANDIDATES
    return true;
#else
    return false;
#endif
}

void forward(const Context& ctx, const ResolvedOptions& options, const Saved& saved) {
    run(ctx, plan(problem_of(Pass::forward, options, saved, {}, {}), options, limits_of(ctx)), options,
        saved);
}

void backward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
              const OutputGradients& d_out, const Gradients& into) {
    run(ctx, plan(problem_of(Pass::backward, options, saved, d_out, into), options, limits_of(ctx)), options,
        saved, d_out, into);
}

std::string explain(const Context& ctx, const ResolvedOptions& options, const Tensor& q, const Tensor& k,
                    const Tensor& v) {
    const auto plan_of = [&](Pass pass) {
        FlashPlan made = plan(problem_of(pass, options, {.q = q, .k = k, .v = v, .o = {}, .lse = {}}, {}, {}),
                              options, limits_of(ctx));
        add_literature_tiles(made, options, q, k, v);
        return made;
    };
    return concat("forward: ", plan_of(Pass::forward), "; backward: ", plan_of(Pass::backward));
}

std::vector<FlashPlan> pass_plans(const Context& ctx, Pass pass, const ResolvedOptions& options,
                                  const Saved& saved) {
    return plans(problem_of(pass, options, saved, {}, {}), options, limits_of(ctx));
}

}  // namespace gradtile::attention::cuda
