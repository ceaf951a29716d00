// LayerNorm and RMSNorm: checks, allocation, and backend choice.
#include <gradtile/core/internal/overlap.h>
#include <gradtile/layers/internal/norm_backend.h>
#include <gradtile/layers/norm.h>
#include <gradtile/layers/rows.h>

namespace gradtile {
namespace {

/// A forward pass's result y, and the values that backward needs.
struct Normalized {
    Tensor y, x, mean, rstd;
};

Normalized normalize(const Context& ctx, const char* op, const Residual& residual, const Parameter& weight,
                     const Tensor& bias, double eps, bool centred) {
    const Tensor &x = residual.x, &branch = residual.branch;
    check(x.rank() >= 1 && x.size(-1) == weight.shape()[0], op, ": x ", x, "; expected [.., ",
          weight.shape()[0], "]");
    check(x.dtype() == weight.value().dtype(), op, ": x ", x, " and weights in ", weight.value().dtype(),
          "; dtypes must be equal");
    check(!branch.defined() || (branch.shape() == x.shape() && branch.dtype() == x.dtype()), op,
          ": residual ", x, " + branch ", branch, "; shapes and dtypes must be equal");
    check_sharing(ctx, op, {"branch", branch}, {{"x", x}}, Sharing::same_view);
    check_sharing(ctx, op, {"branch", branch}, {{"weight", weight.value()}, {"bias", bias}});
    const std::int64_t rows = row_layout(x, op).rows;
    const DType statistic = accumulator_of(x.dtype());
    const NormOutputs out{.y = empty(ctx, x.shape(), x.dtype()),
                          .mean = centred ? empty(ctx, {rows}, statistic) : Tensor(),
                          .rstd = empty(ctx, {rows}, statistic)};
    if (x.elements() > 0)
        on_device(ctx, cpu::norm_forward, cuda::norm_forward, out, residual, weight.value(), bias, eps);
    return {out.y, branch.defined() ? branch : x, out.mean, out.rstd};
}

/// Computes dx and the parameter gradients. Returns dx's column sums if they are requested, except on the
/// CPU, where a separate pass is as fast.
Tensor differentiate(const Context& ctx, const char* op, const NormInputs& in, NormGradients out,
                     ColumnSums sums = ColumnSums::skip) {
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
    check_sharing(ctx, op, {"dx", out.dx},
                  {{"dy", in.dy},
                   {"x", in.x},
                   {"mean", in.mean},
                   {"rstd", in.rstd},
                   {"weight", in.weight},
                   {"gradient of the weight", out.weight.grad},
                   {"gradient of the bias", out.bias.grad}});
    for (const Operand& gradient :
         {Operand{"gradient of the weight", out.weight.grad}, Operand{"gradient of the bias", out.bias.grad}})
        check_sharing(ctx, op, gradient, {{"dy", in.dy}, {"x", in.x}});
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

}  // namespace

LayerNorm::LayerNorm(ParameterStore& parameters, const std::string& name, std::int64_t width, bool with_bias,
                     double epsilon)
    : weight(parameters.add(name + ".weight", {width}, Init::ones())), eps(epsilon) {
    if (with_bias) bias = parameters.add(name + ".bias", {width}, Init::zeros());
}

Tensor LayerNorm::forward(const Context& ctx, const Tensor& x, Saved& saved) const {
    return forward(ctx, Residual{x}, saved);
}

Tensor LayerNorm::forward(const Context& ctx, const Residual& residual, Saved& saved) const {
    const Normalized normalized = normalize(ctx, "layer_norm", residual, weight,
                                            bias.defined() ? bias.value() : Tensor(), eps, /*centred=*/true);
    saved = {normalized.x, normalized.mean, normalized.rstd};
    return normalized.y;
}

namespace {
NormInputs backward_inputs(const LayerNorm& norm, const Tensor& dy, const LayerNorm::Saved& saved) {
    check(saved.mean.defined(), "layer_norm: backward needs the mean that forward saved");
    return {dy, saved.x, saved.mean, saved.rstd, norm.weight.value()};
}
}  // namespace

Tensor LayerNorm::backward(const Context& ctx, const Tensor& dy, const Saved& saved) const {
    Tensor dx = empty(ctx, saved.x.shape(), saved.x.dtype());
    differentiate(ctx, "layer_norm", backward_inputs(*this, dy, saved),
                  {.dx = dx, .weight = weight.begin_gradient_write(), .bias = bias.begin_gradient_write()});
    return dx;
}

SummedGradient LayerNorm::backward_add(const Context& ctx, const Tensor& dy, const Saved& saved,
                                       const Tensor& dx, ColumnSums sums) const {
    return {dx, differentiate(ctx, "layer_norm", backward_inputs(*this, dy, saved),
                              {.dx = dx,
                               .accumulate_dx = true,
                               .weight = weight.begin_gradient_write(),
                               .bias = bias.begin_gradient_write()},
                              sums)};
}

RMSNorm::RMSNorm(ParameterStore& parameters, const std::string& name, std::int64_t width, double epsilon)
    : weight(parameters.add(name + ".weight", {width}, Init::ones())), eps(epsilon) {}

Tensor RMSNorm::forward(const Context& ctx, const Tensor& x, Saved& saved) const {
    return forward(ctx, Residual{x}, saved);
}

Tensor RMSNorm::forward(const Context& ctx, const Residual& residual, Saved& saved) const {
    const Normalized normalized =
        normalize(ctx, "rms_norm", residual, weight, Tensor(), eps, /*centred=*/false);
    saved = {normalized.x, normalized.rstd};
    return normalized.y;
}

Tensor RMSNorm::backward(const Context& ctx, const Tensor& dy, const Saved& saved) const {
    Tensor dx = empty(ctx, saved.x.shape(), saved.x.dtype());
    differentiate(ctx, "rms_norm", {dy, saved.x, Tensor(), saved.rstd, weight.value()},
                  {.dx = dx, .weight = weight.begin_gradient_write()});
    return dx;
}

SummedGradient RMSNorm::backward_add(const Context& ctx, const Tensor& dy, const Saved& saved,
                                     const Tensor& dx, ColumnSums sums) const {
    return {dx,
            differentiate(ctx, "rms_norm", {dy, saved.x, Tensor(), saved.rstd, weight.value()},
                          {.dx = dx, .accumulate_dx = true, .weight = weight.begin_gradient_write()}, sums)};
}

}  // namespace gradtile
