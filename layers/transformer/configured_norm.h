#pragma once
/// The norm that a ModelConfig selects, as one type for both norms.
#include <string>
#include <variant>

#include <gradtile/layers/fused_linear.h>
#include <gradtile/layers/norm.h>
#include <gradtile/layers/pass_hooks.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

/// A norm's parameter name in checkpoints: "ln_1" or "norm_1" for the suffix "1".
std::string norm_name(Norm norm, const std::string& suffix);

/// LayerNorm or RMSNorm over the last axis of x [.., C].
struct ConfiguredNorm {
    using Saved = std::variant<std::monostate, LayerNorm::Saved, RMSNorm::Saved>;
    std::variant<LayerNorm, RMSNorm> norm;

    ConfiguredNorm(ParameterStore& parameters, const std::string& name, const ModelConfig& config);

    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const;
    /// Normalises the residual's sum, and replaces the residual by this sum. In inference, if the device
    /// fuses products of its rows (fuses_products()), the product that reads the result computes the norm.
    Normed forward(const Context& ctx, Residual& residual, Saved& saved) const;
    /// Recomputes the output of the forward pass that wrote `saved`, with the same bits.
    Tensor recompute_output(const Context& ctx, const Saved& saved) const;
    /// Computes the parameter gradients and returns dx.
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved,
                    const BackwardHooks& hooks = {}) const;
    /// Adds the gradient with respect to x to dx, which already holds the residual stream's gradient. Returns
    /// dx, on a GPU with its column sums if requested.
    SummedGradient backward_add(const Context& ctx, const Tensor& dy, const Saved& saved, const Tensor& dx,
                                ColumnSums sums = ColumnSums::skip, const BackwardHooks& hooks = {}) const;
};

}  // namespace gradtile
