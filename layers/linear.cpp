#include <gradtile/layers/linear.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/layers/fused_linear.h>
#include <gradtile/layers/internal/norm_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile {
namespace {

Shape with_last_axis(Shape shape, std::int64_t length) {
    shape[-1] = length;
    return shape;
}

void check_features(const char* what, const Tensor& x, std::int64_t features, const Parameter& weight) {
    check(x.rank() >= 1 && x.size(-1) == features && x.dtype() == weight.dtype(), "linear ", weight.name(),
          ": ", what, " is ", x, "; expected [.., ", features, "] ", weight.dtype());
}

void check_saved(const Linear& linear, const Linear::Saved& saved) {
    if (!linear.backward_needs_x()) return;
    check(saved.x.defined(), "linear ", linear.weight.name(), ": backward needs the x that forward saved");
    check_features("saved x", saved.x, linear.in_features(), linear.weight);
}

}  // namespace

Tensor Normed::value(const Context& ctx) const {
    return norm ? normalized(ctx, x, *norm) : x;
}

Linear::Linear(ParameterStore& parameters, const std::string& name, std::int64_t in, std::int64_t out,
               const LinearOptions& options)
    : weight(parameters.add(name + ".weight", {out, in}, options.init)) {
    if (options.bias) bias = parameters.add(name + ".bias", {out}, Init::zeros());
}

void Linear::add_adapter(ParameterStore& parameters, const LowRankOptions& options) {
    const std::string& name = weight.name();
    adapter.emplace(parameters, name.substr(0, name.rfind('.')), in_features(), out_features(), options);
}

Tensor Linear::forward(const Context& ctx, const Normed& normed, Saved& saved) const {
    check_features("x", normed.x, in_features(), weight);
    if (const std::optional<Tensor> y = forward_in_one_kernel(ctx, normed)) return *y;
    const Tensor x = normed.value(ctx);
    const Tensor y = empty(ctx, with_last_axis(x.shape(), out_features()), x.dtype());
    gemm(ctx, as_matrix(y), as_matrix(x), weight.dequantized(ctx), {.trans_b = true, .bias = bias_value()});
    if (adapter) adapter->add_forward(ctx, as_matrix(y), as_matrix(x));
    saved.x = backward_needs_x() ? x : Tensor{};
    return y;
}

Residual Linear::forward_onto(const Context& ctx, const Residual& stream, const Tensor& x,
                              Saved& saved) const {
    check(!stream.branch.defined(), "linear ", weight.name(), ": the residual stream already has a branch");
    check_features("the residual stream", stream.x, out_features(), weight);
    Residual sum = stream;
    const Normed in(x, {}, stream.inference && !stream.dropout.drops(stream.key));
    if (const std::optional<Tensor> added = forward_in_one_kernel(ctx, in, {}, stream.x)) {
        sum.x = *added;
    } else {
        sum.branch = forward(ctx, x, saved);
    }
    return sum;
}

std::optional<Tensor> Linear::forward_in_one_kernel(const Context& ctx, const Normed& normed,
                                                    std::optional<Activation> activation,
                                                    const Tensor& residual) const {
    const Tensor& x = normed.x;
    if (!normed.inference || adapter || weight.is_quantized() || !fuses_products(ctx, x)) return std::nullopt;
    const bool gated = activation && traits_of(*activation).gated;
    const Tensor y = empty(ctx, with_last_axis(x.shape(), out_features() / (gated ? 2 : 1)), x.dtype());
    const bool computed = fused_linear_in_one_kernel(ctx, y, x,
                                                     {.norm = normed.norm,
                                                      .weight = weight.value(),
                                                      .bias = bias_value(),
                                                      .activation = activation,
                                                      .residual = residual});
    return computed ? std::optional(y) : std::nullopt;
}

void Linear::accumulate_gradients(const Context& ctx, const SummedGradient& gradient,
                                  const Saved& saved) const {
    check_features("dy", gradient.dy, out_features(), weight);
    check_saved(*this, saved);
    accumulate_own_gradients(ctx, gradient, saved);
    if (adapter) adapter->add_backward(ctx, {}, as_matrix(gradient.dy), as_matrix(saved.x));
}

/// The weight and bias gradients.
void Linear::accumulate_own_gradients(const Context& ctx, const SummedGradient& gradient,
                                      const Saved& saved) const {
    if (!weight.is_frozen()) {
        const GradientTarget dw = weight.begin_gradient_write();
        gemm(ctx, dw.grad, as_matrix(gradient.dy), as_matrix(saved.x),
             {.trans_a = true, .accumulate = dw.accumulates()});
    }
    if (bias_has_gradient()) add_column_sums(ctx, bias.begin_gradient_write(), gradient);
}

Tensor Linear::backward(const Context& ctx, const SummedGradient& gradient, const Saved& saved) const {
    const Tensor& dy = gradient.dy;
    check_features("dy", dy, out_features(), weight);
    check_saved(*this, saved);
    accumulate_own_gradients(ctx, gradient, saved);
    const Tensor dx = empty(ctx, with_last_axis(dy.shape(), in_features()), dy.dtype());
    gemm(ctx, as_matrix(dx), as_matrix(dy), weight.dequantized(ctx));
    if (adapter) adapter->add_backward(ctx, as_matrix(dx), as_matrix(dy), as_matrix(saved.x));
    return dx;
}

void Linear::notify_complete(const BackwardHooks& hooks) const {
    notify_gradients_complete(hooks, weight, bias);
    if (adapter) notify_gradients_complete(hooks, adapter->a, adapter->b);
}

}  // namespace gradtile
