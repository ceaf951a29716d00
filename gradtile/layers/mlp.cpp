#include <gradtile/layers/mlp.h>

#include <gradtile/layers/initialization.h>

namespace gradtile {
namespace {

Gelu gelu_of(Activation activation) {
    return {.form = activation == Activation::gelu_tanh ? Gelu::Form::tanh : Gelu::Form::exact};
}

}  // namespace

Mlp::Mlp(ParameterStore& parameters, const std::string& name, const ModelConfig& config)
    : activation(config.activation) {
    const bool gated = activation == Activation::swiglu;
    const std::int64_t hidden = config.hidden_width();
    up = Linear(parameters, name + (gated ? ".gate_up" : ".fc"), config.width, gated ? 2 * hidden : hidden,
                {.bias = config.bias, .init = weight_init()});
    down = Linear(parameters, name + (gated ? ".down" : ".proj"), hidden, config.width,
                  {.bias = config.bias, .init = residual_init(config)});
}

void Mlp::forward_hidden(const Context& ctx, const Tensor& x, Saved& saved) const {
    saved.hidden = up.forward(ctx, x, saved.up);
    if (activation == Activation::swiglu) {
        SwiGlu::Saved same_hidden;
        saved.down.x = SwiGlu{}.forward(ctx, saved.hidden, same_hidden);
    } else {
        Gelu::Saved same_hidden;
        saved.down.x = gelu_of(activation).forward(ctx, saved.hidden, same_hidden);
    }
}

Tensor Mlp::forward(const Context& ctx, const Tensor& x, Saved& saved) const {
    forward_hidden(ctx, x, saved);
    return down.forward(ctx, saved.down.x, saved.down);
}

Tensor Mlp::backward(const Context& ctx, const Tensor& dy, const Saved& saved,
                     const GradientReady& ready) const {
    Tensor d_hidden = down.backward(ctx, dy, saved.down);
    announce(ready, down.weight, down.bias);
    if (activation == Activation::swiglu) {
        d_hidden = SwiGlu{}.backward(ctx, d_hidden, {saved.hidden});
    } else {
        gelu_of(activation).backward_into(ctx, d_hidden, d_hidden, saved.hidden);
    }
    Tensor dx = up.backward(ctx, d_hidden, saved.up);
    announce(ready, up.weight, up.bias);
    return dx;
}

}  // namespace gradtile
