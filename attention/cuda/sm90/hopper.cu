#include <gradtile/attention/cuda/sm90/hopper.h>

#include <algorithm>
#include <numbers>

#include <gradtile/attention/cuda/sm90/launch_candidate.h>
#include <gradtile/attention/internal/gpu_dtypes.h>
#include <gradtile/core/internal/cuda_check.h>

namespace gradtile::attention::cuda {

const char* why_no_sm90([[maybe_unused]] Device device) {
#ifdef GRADTILE_HAVE_HOPPER
    if (!gradtile::cuda::is_hopper(device)) return "the GPU is not of compute capability 9.0";
    return gradtile::cuda::is_off("GRADTILE_HOPPER_ATTENTION") ? "GRADTILE_HOPPER_ATTENTION is off" : nullptr;
#else
    return "this build has no code for sm_90a";
#endif
}

#ifdef GRADTILE_HAVE_HOPPER
void hopper_forward(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
                    PackedTask* row_tasks, const DeviceRowRanges& row_ranges) {
    const HopperForwardParameters parameters{
        .lse = lse.data<float>(),
        .sizes = device::sizes_of(q, k, v),
        .mask = device::DeviceMask(options.mask),
        .pairs = plan.schedule.pairs.value_or(false),
        .order = device::TaskOrder::with_sets(0, 0, plan.schedule.set_heads()),
        .scale_log2 = static_cast<float>(std::numbers::log2e * options.scale),
        .sink = options.scores.sink,
        .sink_stride = options.scores.sink_stride,
        .packed = PackedOffsets(options),
        .row_tasks = {row_tasks},
        .scores = options.scores,
        .row_ranges = row_ranges,
        .non_finite = row_ranges ? non_finite_flag(options) : nullptr};
#ifdef GRADTILE_HAVE_CANDIDATES
    if (const auto candidate = plan.tiles.candidate)
        return visit_head_dim(Bits16HeadDims{}, plan.tiles.head_dim, [&]<int head_dim>(HeadDim<head_dim>) {
            launch_hopper_forward_candidate<head_dim>(*candidate, q, k, v, o, parameters, ctx);
        });
#endif
    visit_16bit(q.dtype(), [&]<class T>(TypeTag<T>) {
        launch_hopper_forward<T>(q, k, v, o, parameters, plan.tiles, ctx);
    });
}
void hopper_few_queries(const Context& ctx, const Tensor& k, const Tensor& v,
                        const Bits16ForwardParameters& parameters, const SplitParameters& split) {
    visit_16bit(k.dtype(), [&]<class T>(TypeTag<T>) {
        launch_hopper_few_queries<T>(k, v, {.params = parameters, .split = split}, ctx);
    });
}
void hopper_backward(const Context& ctx, const FlashPlan& plan, const HopperBackwardTensors& tensors,
                     const Bits16BackwardParameters& parameters) {
#ifdef GRADTILE_HAVE_CANDIDATES
    if (const auto candidate = plan.tiles.candidate)
        return visit_head_dim(HopperBackwardHeadDims{}, plan.tiles.head_dim, [&]<int dim>(HeadDim<dim>) {
            launch_hopper_backward_candidate<dim>(*candidate, tensors, parameters, ctx);
        });
#endif
    visit_16bit(tensors.q.dtype(), [&]<class T>(TypeTag<T>) {
        if (plan.tiles.head_dim > hopper_backward_keys_max_head_dim) {
            launch_hopper_backward_columns<T>(tensors, parameters, ctx);
        } else {
            launch_hopper_backward<T>(tensors, parameters, ctx);
        }
    });
}
void hopper_pair_bias_gradient(const Context& ctx, const HopperBackwardTensors& tensors,
                               const Bits16BackwardParameters& parameters, const BiasGradient& gradient,
                               const BiasGradientParts& parts) {
    visit_16bit(tensors.q.dtype(), [&]<class T>(TypeTag<T>) {
        launch_hopper_pair_bias_gradient<T>(tensors, parameters, gradient, parts, ctx);
    });
}
#else
namespace {
[[noreturn]] void throw_absent() {
    throw Error("attention: this build has no code for sm_90a");
}
}  // namespace
void hopper_forward(const Context&, const FlashPlan&, const ResolvedOptions&, const Tensor&, const Tensor&,
                    const Tensor&, const Tensor&, const Tensor&, PackedTask*, const DeviceRowRanges&) {
    throw_absent();
}
void hopper_few_queries(const Context&, const Tensor&, const Tensor&, const Bits16ForwardParameters&,
                        const SplitParameters&) {
    throw_absent();
}
void hopper_backward(const Context&, const FlashPlan&, const HopperBackwardTensors&,
                     const Bits16BackwardParameters&) {
    throw_absent();
}
void hopper_pair_bias_gradient(const Context&, const HopperBackwardTensors&, const Bits16BackwardParameters&,
                               const BiasGradient&, const BiasGradientParts&) {
    throw_absent();
}
template <class T>
void launch_hopper_decode(const Context&, const DecodeProblem&, const DecodePlan&,
                          const decoding::DecodeParameters<T>&) {
    throw_absent();
}
template void launch_hopper_decode<bfloat16>(const Context&, const DecodeProblem&, const DecodePlan&,
                                             const decoding::DecodeParameters<bfloat16>&);
template void launch_hopper_decode<float16>(const Context&, const DecodeProblem&, const DecodePlan&,
                                            const decoding::DecodeParameters<float16>&);
#endif

}  // namespace gradtile::attention::cuda
