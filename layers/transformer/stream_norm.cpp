#include <gradtile/layers/transformer/internal/stream_norm.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/fused_linear.h>

namespace gradtile {

NormLayer configured_norm(ParameterStore& parameters, const std::string& prefix, const std::string& suffix,
                          const ModelConfig& config) {
    switch (config.norm) {
        case Norm::layer:
            return LayerNorm(parameters, prefix + "ln_" + suffix, config.width, config.bias,
                             config.norm_epsilon, config.norm_weight_offset());
        case Norm::rms:
            return RMSNorm(parameters, prefix + "norm_" + suffix, config.width, config.norm_epsilon,
                           config.norm_weight_offset());
    }
    throw Error("norm: unknown kind");
}

Normed normalize_stream(const Context& ctx, const std::optional<NormLayer>& norm, Residual& residual,
                        NormLayer::Saved& saved) {
    Normed y{Tensor(), {}, residual.inference};
    if (norm && !(residual.inference && fuses_products(ctx, residual.x))) {
        y.x = norm->forward(ctx, residual, saved);
        residual.x = saved.x;
    } else {
        y.x = residual.x = residual.sum(ctx);
        if (norm) y.norm = norm->parameters();
    }
    residual.branch = {};
    return y;
}

Tensor recompute_output(const Context& ctx, const NormLayer& norm, const NormLayer::Saved& saved) {
    NormLayer::Saved same;
    return norm.forward(ctx, saved.x, same);
}

SummedGradient add_to_stream_gradient(const Context& ctx, const std::optional<NormLayer>& norm,
                                      const Tensor& dy, const NormLayer::Saved& saved, const Tensor& stream,
                                      ColumnSums sums, const BackwardHooks& hooks) {
    if (norm) return norm->backward_add(ctx, dy, saved, stream, sums, hooks);
    axpy(ctx, stream, 1.0, dy);
    return stream;
}

}  // namespace gradtile
