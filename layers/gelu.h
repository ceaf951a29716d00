#pragma once
/// Gaussian error linear unit (Hendrycks and Gimpel 2016).
#include <gradtile/core/tensor.h>

namespace gradtile {

/// exact: y = x * Phi(x); tanh: y = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))), GPT-2's form.
/// x [.., C], rows contiguous, any float dtype.
struct Gelu {
    enum class Form { tanh, exact };
    struct Saved {
        Tensor x;
    };

    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const;
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const;
    /// The same into tensors the caller supplies; y may be x itself, dx may be dy itself.
    void forward_into(const Context& ctx, const Tensor& y, const Tensor& x) const;
    void backward_into(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x) const;

    Form form = Form::tanh;
};

}  // namespace gradtile
