#include <gradtile/layers/transformer/mlp.h>

#include <gradtile/layers/activation.h>
#include <gradtile/layers/linear_activation.h>
#include <gradtile/layers/transformer/initialization.h>

namespace gradtile {

Mlp::Mlp(ParameterStore& parameters, const std::string& name, const ModelConfig& config,
         const TrainingOptions& training)
    : activation(config.activation) {
    const bool gated = traits_of(activation).gated;
    const BlockMatrices shapes = block_matrices(config);
    up = Linear(parameters, name + (gated ? ".gate_up" : ".fc"), shapes.up.in, shapes.up.out,
                {.bias = config.bias, .init = weight_init()});
    down = Linear(parameters, name + (gated ? ".down" : ".proj"), shapes.down.in, shapes.down.out,
                  {.bias = config.bias, .init = residual_init(config, training)});
}

Tensor Mlp::activated(const Context& ctx, const Tensor& hidden) const {
    ActivationLayer::Saved saved;
    return ActivationLayer{activation}.forward(ctx, hidden, saved);
}

void Mlp::forward_hidden(const Context& ctx, const Normed& normed, Saved& saved) const {
    check(normed.x.rank() >= 1, "mlp: x is ", normed.x, "; expected [.., ", up.in_features(), ']');
    if (up.adapter) {  // the adapter's term must be added before the activation
        saved.hidden = up.forward(ctx, normed, saved.up);
        saved.down.x = activated(ctx, saved.hidden);
    } else if (const std::optional<Tensor> y = up.forward_in_one_kernel(ctx, normed, activation)) {
        saved.down.x = *y;
    } else {
        const Tensor x = normed.value(ctx);
        saved.up.x = up.backward_needs_x() ? x : Tensor();
        Shape shape = x.shape();
        shape[-1] = up.out_features();
        saved.hidden = empty(ctx, shape, x.dtype());
        shape[-1] = down.in_features();
        saved.down.x = empty(ctx, shape, x.dtype());
        linear_activation_forward(ctx, saved.down.x, saved.hidden, x, up.weight.dequantized(ctx),
                                  up.bias_value(), activation);
    }
}

Tensor Mlp::forward(const Context& ctx, const Normed& x, Saved& saved) const {
    forward_hidden(ctx, x, saved);
    return down.forward(ctx, {saved.down.x, {}, x.inference}, saved.down);
}

Residual Mlp::forward_onto(const Context& ctx, const Residual& stream, const Normed& x, Saved& saved) const {
    forward_hidden(ctx, x, saved);
    return down.forward_onto(ctx, stream, saved.down.x, saved.down);
}

Tensor Mlp::backward(const Context& ctx, const SummedGradient& dy, const Saved& saved,
                     const BackwardHooks& hooks) const {
    Linear::Saved at_down = saved.down;
    if (!at_down.x.defined() && down.backward_needs_x()) at_down.x = activated(ctx, saved.hidden);
    SummedGradient d_hidden;
    if (down.adapter) {
        const Tensor d_activated = down.backward(ctx, dy, at_down);
        at_down = {};  // frees a recomputed activation before d_hidden is allocated
        down.notify_complete(hooks);
        d_hidden = ActivationLayer{activation}.backward(ctx, d_activated, {saved.hidden});
    } else {
        down.accumulate_gradients(ctx, dy, at_down);
        at_down = {};
        down.notify_complete(hooks);
        d_hidden = empty(ctx, saved.hidden.shape(), saved.hidden.dtype());
        if (up.bias_has_gradient() && !traits_of(activation).gated)
            d_hidden.column_sums = empty_column_sums(ctx, saved.hidden);
        linear_activation_backward(ctx, d_hidden, dy.dy, down.weight.dequantized(ctx), saved.hidden,
                                   activation);
    }
    Tensor dx = up.backward(ctx, d_hidden, saved.up);
    up.notify_complete(hooks);
    return dx;
}

}  // namespace gradtile
