#pragma once
/// Gated linear unit with the Swish gate (Shazeer 2020, "GLU variants improve transformer", section 2).
#include <gradtile/core/tensor.h>

namespace gradtile {

/// x [.., 2C] holds gate and up side by side, as one packed projection leaves them; y [.., C] = silu(gate) *
/// up with silu(a) = a * sigmoid(a). Rows contiguous, any float dtype.
struct SwiGlu {
    struct Saved {
        Tensor x;
    };

    Tensor forward(const Context& ctx, const Tensor& x /*[.., 2C]*/, Saved& saved) const;
    Tensor backward(const Context& ctx, const Tensor& dy /*[.., C]*/, const Saved& saved) const;
    /// The same into tensors the caller supplies; they overlap nothing else, except that dx may be x itself.
    void forward_into(const Context& ctx, const Tensor& y, const Tensor& x) const;
    void backward_into(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x) const;
};

}  // namespace gradtile
