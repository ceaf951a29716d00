// LayerNorm and RMSNorm: checks, memory, and the choice of the device.
#include <gradtile/layers/layer_norm.h>
#include <gradtile/layers/norm_backend.h>
#include <gradtile/layers/rms_norm.h>
#include <gradtile/layers/rows.h>

namespace gradtile {
namespace {

Tensor normalize(const Context& ctx, const char* op, const Tensor& x, const Parameter& weight,
                 const Tensor& bias, double eps, Tensor* mean, Tensor& rstd) {
    check(x.size(-1) == weight.shape()[0], op, ": x ", x, " for width ", weight.shape()[0]);
    check(x.dtype() == weight.value().dtype(), op, ": x ", x, " with weights in ", weight.value().dtype());
    const RowLayout layout = row_layout(x, op);
    const DType statistic = accumulator_of(x.dtype());
    if (mean != nullptr) *mean = empty(ctx, {layout.rows}, statistic);
    rstd = empty(ctx, {layout.rows}, statistic);
    Tensor y = empty(ctx, x.shape(), x.dtype());
    if (x.elements() == 0) return y;
    on_device(ctx, cpu::norm_forward, cuda::norm_forward, y, mean != nullptr ? *mean : Tensor(), rstd, x,
              weight.value(), bias, eps);
    return y;
}

void differentiate(const Context& ctx, const char* op, const NormInputs& in, NormGradients out) {
    check(in.dy.shape() == in.x.shape() && in.dy.dtype() == in.x.dtype(), op, ": dy ", in.dy, " for x ",
          in.x);
    check(out.dx.shape() == in.x.shape() && out.dx.dtype() == in.x.dtype(), op, ": dx ", out.dx, " for x ",
          in.x);
    row_layout(in.dy, op);
    row_layout(out.dx, op);
    const RowLayout layout = row_layout(in.x, op);
    if (in.x.elements() == 0) return;
    const auto partials_for = ctx.device().is_cpu() ? cpu::norm_partials : cuda::norm_partials;
    out.partials =
        empty(ctx, {partials_for(layout.rows, layout.width), 2, layout.width}, accumulator_of(in.x.dtype()));
    on_device(ctx, cpu::norm_backward, cuda::norm_backward, out, in);
}

}  // namespace

LayerNorm::LayerNorm(ParameterStore& parameters, const std::string& name, std::int64_t width, bool with_bias,
                     double epsilon)
    : weight(parameters.add(name + ".weight", {width}, Init::ones())), eps(epsilon) {
    if (with_bias) bias = parameters.add(name + ".bias", {width}, Init::zeros());
}

Tensor LayerNorm::forward(const Context& ctx, const Tensor& x, Saved& saved) const {
    saved.x = x;
    return normalize(ctx, "layer_norm", x, weight, bias.defined() ? bias.value() : Tensor(), eps, &saved.mean,
                     saved.rstd);
}

Tensor LayerNorm::backward(const Context& ctx, const Tensor& dy, const Saved& saved) const {
    Tensor dx = empty(ctx, saved.x.shape(), saved.x.dtype());
    differentiate(ctx, "layer_norm", {dy, saved.x, saved.mean, saved.rstd, weight.value()},
                  {.dx = dx,
                   .accumulate_dx = false,
                   .weight = weight.grad(),
                   .bias = bias.defined() ? bias.grad() : Tensor(),
                   .partials = {}});
    return dx;
}

void LayerNorm::backward_add(const Context& ctx, const Tensor& dy, const Saved& saved,
                             const Tensor& dx) const {
    differentiate(ctx, "layer_norm", {dy, saved.x, saved.mean, saved.rstd, weight.value()},
                  {.dx = dx,
                   .accumulate_dx = true,
                   .weight = weight.grad(),
                   .bias = bias.defined() ? bias.grad() : Tensor(),
                   .partials = {}});
}

RMSNorm::RMSNorm(ParameterStore& parameters, const std::string& name, std::int64_t width, double epsilon)
    : weight(parameters.add(name + ".weight", {width}, Init::ones())), eps(epsilon) {}

Tensor RMSNorm::forward(const Context& ctx, const Tensor& x, Saved& saved) const {
    saved.x = x;
    return normalize(ctx, "rms_norm", x, weight, Tensor(), eps, nullptr, saved.rstd);
}

Tensor RMSNorm::backward(const Context& ctx, const Tensor& dy, const Saved& saved) const {
    Tensor dx = empty(ctx, saved.x.shape(), saved.x.dtype());
    differentiate(ctx, "rms_norm", {dy, saved.x, Tensor(), saved.rstd, weight.value()},
                  {.dx = dx, .accumulate_dx = false, .weight = weight.grad(), .bias = {}, .partials = {}});
    return dx;
}

void RMSNorm::backward_add(const Context& ctx, const Tensor& dy, const Saved& saved, const Tensor& dx) const {
    differentiate(ctx, "rms_norm", {dy, saved.x, Tensor(), saved.rstd, weight.value()},
                  {.dx = dx, .accumulate_dx = true, .weight = weight.grad(), .bias = {}, .partials = {}});
}

}  // namespace gradtile
