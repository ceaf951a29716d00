// LayerNorm and RMSNorm: checks, allocation, and backend choice.
#include <gradtile/core/internal/overlap.h>
#include <gradtile/layers/internal/norm_backend.h>
#include <gradtile/layers/norm.h>
#include <gradtile/layers/rows.h>

namespace gradtile {
namespace {

const char* operator_name(const NormParameters& norm) {
    return norm.centred ? "layer_norm" : "rms_norm";
}

Tensor normalize(const Context& ctx, const Residual& residual, const NormParameters& norm,
                 NormLayer::Saved& saved) {
    const char* const op = operator_name(norm);
    const Tensor &x = residual.x, &branch = residual.branch;
    check(x.rank() >= 1 && x.size(-1) == norm.weight.size(0), op, ": x ", x, "; expected [.., ",
          norm.weight.size(0), "]");
    check(x.dtype() == norm.weight.dtype(), op, ": x ", x, " and weights in ", norm.weight.dtype(),
          "; dtypes must be equal");
    check(!branch.defined() || (branch.shape() == x.shape() && branch.dtype() == x.dtype()), op,
          ": residual ", x, " + branch ", branch, "; shapes and dtypes must be equal");
    check_sharing(ctx, op, {"branch", branch}, {{"x", x}}, Sharing::same_view);
    check_sharing(ctx, op, {"branch", branch}, {{"weight", norm.weight}, {"bias", norm.bias}});
    const std::int64_t rows = row_layout(x, op).rows;
    const DType statistic = accumulator_of(x.dtype());
    const NormOutputs out{.y = empty(ctx, x.shape(), x.dtype()),
                          .mean = norm.centred ? empty(ctx, {rows}, statistic) : Tensor(),
                          .rstd = empty(ctx, {rows}, statistic)};
    if (x.elements() > 0) on_device(ctx, cpu::norm_forward, cuda::norm_forward, out, residual, norm);
    saved = {branch.defined() ? branch : x, out.mean, out.rstd};
    return out.y;
}

/// Returns x's rows. Throws Error unless the operands fit each other and do not share memory.
RowLayout check_gradients(const Context& ctx, const char* op, const NormInputs& in,
                          const NormGradients& out) {
    check(in.dy.shape() == in.x.shape() && in.dy.dtype() == in.x.dtype(), op, ": dy ", in.dy, " for x ", in.x,
          "; shapes and dtypes must be equal");
    check(out.dx.shape() == in.x.shape() && out.dx.dtype() == in.x.dtype(), op, ": dx ", out.dx, " for x ",
          in.x, "; shapes and dtypes must be equal");
    row_layout(in.dy, op);
    row_layout(out.dx, op);
    const RowLayout layout = row_layout(in.x, op);
    for (const Tensor* statistic : {&in.mean, &in.rstd})
        check(statistic->shape() == Shape{layout.rows} || (statistic == &in.mean && !in.mean.defined()), op,
              ": statistics ", *statistic, " for x ", in.x, "; backward needs what forward saved");
    const Operand d_weight{"gradient of the weight", out.weight.grad},
        d_bias{"gradient of the bias", out.bias.grad};
    check_sharing(ctx, op, {"dx", out.dx},
                  {{"dy", in.dy},
                   {"x", in.x},
                   {"mean", in.mean},
                   {"rstd", in.rstd},
                   {"weight", in.weight},
                   d_weight,
                   d_bias});
    for (const Operand& gradient : {d_weight, d_bias})
        check_sharing(ctx, op, gradient, {{"dy", in.dy}, {"x", in.x}});
    return layout;
}

/// Computes dx and the parameter gradients. Returns dx's column sums if they are requested, except on the
/// CPU, where a separate pass is as fast.
Tensor differentiate(const Context& ctx, const NormLayer& norm, const Tensor& dy,
                     const NormLayer::Saved& saved, NormGradients out, ColumnSums sums = ColumnSums::skip) {
    const NormParameters parameters = norm.parameters();
    const char* const op = operator_name(parameters);
    check(saved.mean.defined() == norm.centred, op, ": mean ", saved.mean,
          "; backward needs what forward saved");
    const NormInputs in{dy, saved.x, saved.mean, saved.rstd, parameters.weight, norm.weight_offset};
    out.weight = norm.weight.begin_gradient_write();
    out.bias = norm.bias.begin_gradient_write();
    const RowLayout layout = check_gradients(ctx, op, in, out);
    if (in.x.elements() == 0) {
        for (const GradientTarget& target : {out.weight, out.bias}) ready_to_add(ctx, target);
        return {};
    }
    const bool cpu = ctx.device().is_cpu();
    const std::int64_t parts = (cpu ? cpu::norm_partials : cuda::norm_partials)(layout.rows, layout.width);
    const DType sum = accumulator_of(in.x.dtype());
    if (sums == ColumnSums::compute && !cpu) out.column_sums = empty(ctx, {parts, layout.width}, sum);
    out.partials = empty(ctx, {parts, 2, layout.width}, sum);
    on_device(ctx, cpu::norm_backward, cuda::norm_backward, out, in);
    return out.column_sums;
}

NormLayer norm_layer(ParameterStore& parameters, const std::string& name, std::int64_t width,
                     const NormParameters& norm) {
    // A norm's gain starts at 1.
    return {
        .weight = parameters.add(name + ".weight", {width}, {Init::Kind::constant, 1.0 - norm.weight_offset}),
        .bias = {},
        .eps = norm.eps,
        .centred = norm.centred,
        .weight_offset = norm.weight_offset};
}

}  // namespace

LayerNorm::LayerNorm(ParameterStore& parameters, const std::string& name, std::int64_t width, bool with_bias,
                     double epsilon, double offset)
    : NormLayer(
          norm_layer(parameters, name, width, {.weight = {}, .eps = epsilon, .weight_offset = offset})) {
    if (with_bias) bias = parameters.add(name + ".bias", {width}, Init::zeros());
}

RMSNorm::RMSNorm(ParameterStore& parameters, const std::string& name, std::int64_t width, double epsilon,
                 double offset)
    : NormLayer(norm_layer(parameters, name, width,
                           {.weight = {}, .eps = epsilon, .centred = false, .weight_offset = offset})) {}

NormParameters NormLayer::parameters() const {
    return {.weight = weight.value(),
            .bias = bias.defined() ? bias.value() : Tensor(),
            .eps = eps,
            .centred = centred,
            .weight_offset = weight_offset};
}

Tensor NormLayer::forward(const Context& ctx, const Tensor& x, Saved& saved) const {
    return forward(ctx, Residual{x}, saved);
}

Tensor NormLayer::forward(const Context& ctx, const Residual& residual, Saved& saved) const {
    return normalize(ctx, residual, parameters(), saved);
}

Tensor NormLayer::backward(const Context& ctx, const Tensor& dy, const Saved& saved,
                           const BackwardHooks& hooks) const {
    Tensor dx = empty(ctx, saved.x.shape(), saved.x.dtype());
    differentiate(ctx, *this, dy, saved, {.dx = dx});
    notify_gradients_complete(hooks, weight, bias);
    return dx;
}

SummedGradient NormLayer::backward_add(const Context& ctx, const Tensor& dy, const Saved& saved,
                                       const Tensor& dx, ColumnSums sums, const BackwardHooks& hooks) const {
    SummedGradient summed(dx, differentiate(ctx, *this, dy, saved, {.dx = dx, .accumulate_dx = true}, sums));
    notify_gradients_complete(hooks, weight, bias);
    return summed;
}

Tensor normalized(const Context& ctx, const Tensor& x, const NormParameters& norm) {
    NormLayer::Saved unused;
    return normalize(ctx, Residual{x}, norm, unused);
}

}  // namespace gradtile
