#pragma once
/// The norm a ModelConfig names: one type for blocks that take either.
#include <string>
#include <variant>

#include <gradtile/layers/layer_norm.h>
#include <gradtile/layers/pass_hooks.h>
#include <gradtile/layers/rms_norm.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

/// What checkpoints call a norm: "ln_1" or "norm_1" for the suffix "1".
std::string norm_name(Norm norm, const std::string& suffix);

/// LayerNorm or RMSNorm over the last axis of x [.., C].
struct ConfiguredNorm {
    using Saved = std::variant<std::monostate, LayerNorm::Saved, RMSNorm::Saved>;
    std::variant<LayerNorm, RMSNorm> norm;

    ConfiguredNorm(ParameterStore& parameters, const std::string& name, const ModelConfig& config);

    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const;
    /// Of a residual, which is added up: afterwards its x is the sum.
    Tensor forward(const Context& ctx, Residual& residual, Saved& saved) const;
    /// The output of the forward pass that left `saved`, bit for bit.
    Tensor output_again(const Context& ctx, const Saved& saved) const;
    /// Returns dx.
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved,
                    const BackwardHooks& hooks = {}) const;
    /// dx += the gradient: where a residual branch leaves the stream. Returns dx, with its column sums where
    /// they are wanted and come along.
    SummedGradient backward_add(const Context& ctx, const Tensor& dy, const Saved& saved, const Tensor& dx,
                                ColumnSums sums = ColumnSums::unwanted,
                                const BackwardHooks& hooks = {}) const;
};

}  // namespace gradtile
