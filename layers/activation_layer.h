#pragma once
/// An MLP's activation as a layer of its own.
#include <gradtile/core/tensor.h>
#include <gradtile/layers/activation.h>

namespace gradtile {

/// y = f(x) element by element. A gated activation takes x [.., 2C], gate and up side by side as one packed
/// projection leaves them, and returns y [.., C]; any other x and y [.., C]. Rows contiguous, any float
/// dtype.
struct ActivationLayer {
    struct Saved {
        Tensor x;
    };

    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const;
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const;
    /// The same into tensors of the caller, which overlap no operand but these: if gated, dx may be x itself;
    /// else y may be x itself, and dx may be dy itself.
    void forward_into(const Context& ctx, const Tensor& y, const Tensor& x) const;
    void backward_into(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x) const;

    Activation activation = Activation::gelu_tanh;
};

}  // namespace gradtile
