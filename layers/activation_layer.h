#pragma once
/// The MLP's activation as a separate layer.
#include <gradtile/core/tensor.h>
#include <gradtile/layers/activation.h>

namespace gradtile {

/// y = f(x), element by element. A gated activation takes x [.., 2C], which packs gate and up, and returns y
/// [.., C]. Other activations take x [.., C] and return y [.., C]. Rows are contiguous; any floating dtype is
/// allowed.
struct ActivationLayer {
    struct Saved {
        Tensor x;
    };

    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const;
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const;
    /// Like forward() and backward(), but write to the caller's tensor. They throw Error if the output shares
    /// memory with another operand, with these exceptions: for a gated activation, dx may be x itself; for
    /// other activations, y may be x itself and dx may be dy itself.
    void forward_into(const Context& ctx, const Tensor& y, const Tensor& x) const;
    void backward_into(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x) const;

    Activation activation = Activation::gelu_tanh;
};

}  // namespace gradtile
