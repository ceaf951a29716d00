// The sum of streams that a block reads.
#include <gradtile/layers/transformer/transformer_block.h>

namespace gradtile {

StreamMix::StreamMix(ParameterStore& parameters, const std::string& name, const ModelConfig& config) {
    if (config.x0_lambdas)
        sum.emplace(parameters, name, std::vector<WeightedSum::Term>{{"stream", 1.0}, {"x0", 0.0}});
}

Residual StreamMix::forward(const Context& ctx, const Residual& stream, const Tensor& x0,
                            Saved& saved) const {
    if (!sum) return stream;
    Residual mixed{sum->forward(ctx, std::vector<Tensor>{stream.sum(ctx), x0}, saved)};
    mixed.inference = stream.inference;
    return mixed;
}

Tensor StreamMix::recompute(const Context& ctx, const Saved& saved) const {
    Saved same;
    return sum->forward(ctx, saved.terms, same);
}

SummedGradient StreamMix::backward(const Context& ctx, const SummedGradient& dy, const Saved& saved,
                                   Tensor& d_x0, const BackwardHooks& hooks) const {
    if (!sum) return dy;
    std::vector<Tensor> others{d_x0};
    Tensor dx = sum->backward(ctx, dy.dy, saved, others);
    d_x0 = others.front();
    for (const Parameter& factor : sum->factors) notify_gradients_complete(hooks, factor);
    return dx;
}

}  // namespace gradtile
