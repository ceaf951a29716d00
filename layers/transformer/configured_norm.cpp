#include <gradtile/layers/transformer/configured_norm.h>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

template <class Layer>
const typename Layer::Saved& saved_of(const ConfiguredNorm::Saved& saved) {
    const auto* own = std::get_if<typename Layer::Saved>(&saved);
    check(own != nullptr, "norm: backward requires the saved values of a forward pass with the same norm");
    return *own;
}

void notify_norm_complete(const BackwardHooks& hooks, const LayerNorm& layer) {
    notify_gradients_complete(hooks, layer.weight, layer.bias);
}
void notify_norm_complete(const BackwardHooks& hooks, const RMSNorm& layer) {
    notify_gradients_complete(hooks, layer.weight);
}

}  // namespace

std::string norm_name(Norm norm, const std::string& suffix) {
    switch (norm) {
        case Norm::layer:
            return "ln_" + suffix;
        case Norm::rms:
            return "norm_" + suffix;
    }
    throw Error("norm: unknown kind");
}

ConfiguredNorm::ConfiguredNorm(ParameterStore& parameters, const std::string& name, const ModelConfig& config)
    : norm([&]() -> std::optional<std::variant<LayerNorm, RMSNorm>> {
          switch (config.norm) {
              case Norm::layer:
                  return LayerNorm(parameters, name, config.width, config.bias, config.norm_epsilon,
                                   config.norm_weight_offset());
              case Norm::rms:
                  return RMSNorm(parameters, name, config.width, config.norm_epsilon,
                                 config.norm_weight_offset());
          }
          throw Error("norm: unknown kind");
      }()) {}

Tensor ConfiguredNorm::forward(const Context& ctx, const Tensor& x, Saved& saved) const {
    Residual residual{x};
    return forward(ctx, residual, saved).value(ctx);
}

Normed ConfiguredNorm::forward(const Context& ctx, Residual& residual, Saved& saved) const {
    const auto replace_by = [&](const Tensor& sum) {
        residual.x = sum;
        residual.branch = {};
    };
    if (!norm) {
        replace_by(residual.sum(ctx));
        return {residual.x, {}, residual.inference};
    }
    return std::visit(
        [&]<class Layer>(const Layer& layer) -> Normed {
            if (residual.inference && fuses_products(ctx, residual.x)) {
                replace_by(residual.sum(ctx));
                return {residual.x, layer.parameters(), /*in_inference=*/true};
            }
            auto& own = saved.emplace<typename Layer::Saved>();
            const Tensor y = layer.forward(ctx, residual, own);
            replace_by(own.x);
            return {y, {}, residual.inference};
        },
        *norm);
}

Tensor ConfiguredNorm::recompute_output(const Context& ctx, const Saved& saved) const {
    check(exists(), "norm: an absent norm has no output");
    return std::visit(
        [&]<class Layer>(const Layer& layer) {
            typename Layer::Saved same;
            return layer.forward(ctx, saved_of<Layer>(saved).x, same);
        },
        *norm);
}

Tensor ConfiguredNorm::backward(const Context& ctx, const Tensor& dy, const Saved& saved,
                                const BackwardHooks& hooks) const {
    if (!norm) return dy;
    return std::visit(
        [&]<class Layer>(const Layer& layer) {
            Tensor dx = layer.backward(ctx, dy, saved_of<Layer>(saved));
            notify_norm_complete(hooks, layer);
            return dx;
        },
        *norm);
}

SummedGradient ConfiguredNorm::backward_add(const Context& ctx, const Tensor& dy, const Saved& saved,
                                            const Tensor& dx, ColumnSums sums,
                                            const BackwardHooks& hooks) const {
    if (!norm) {
        axpy(ctx, dx, 1.0, dy);
        return dx;
    }
    return std::visit(
        [&]<class Layer>(const Layer& layer) {
            SummedGradient summed = layer.backward_add(ctx, dy, saved_of<Layer>(saved), dx, sums);
            notify_norm_complete(hooks, layer);
            return summed;
        },
        *norm);
}

}  // namespace gradtile
