#pragma once
/// The norms of the residual stream, which a ModelConfig selects. A block may lack some of them.
#include <optional>
#include <string>

#include <gradtile/layers/linear.h>
#include <gradtile/layers/norm.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

/// The norm with the parameters prefix + "ln_" + suffix, or prefix + "norm_" + suffix for Norm::rms.
NormLayer configured_norm(ParameterStore& parameters, const std::string& prefix, const std::string& suffix,
                          const ModelConfig& config);

/// Normalises the residual's sum, unless there is no norm, and replaces the residual by this sum. In
/// inference, if the device fuses products of its rows (fuses_products()), the product that reads the result
/// computes the norm.
Normed normalize_stream(const Context& ctx, const std::optional<NormLayer>& norm, Residual& residual,
                        NormLayer::Saved& saved);
/// Recomputes the output of the forward pass that wrote `saved`, with the same bits.
Tensor recompute_output(const Context& ctx, const NormLayer& norm, const NormLayer::Saved& saved);
/// Adds the gradient with respect to the norm's input, or dy without a norm, to `stream`, the residual
/// stream's gradient. Returns `stream`, on a GPU with its column sums if requested.
SummedGradient add_to_stream_gradient(const Context& ctx, const std::optional<NormLayer>& norm,
                                      const Tensor& dy, const NormLayer::Saved& saved, const Tensor& stream,
                                      ColumnSums sums, const BackwardHooks& hooks);

}  // namespace gradtile
