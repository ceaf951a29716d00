#pragma once
/// A matrix product and the activation next to it as one operator, so that a device may apply the activation
/// to the product's tiles before they leave the chip. Values are those of Linear and ActivationLayer one
/// after the other; on the CPU, bit for bit; on CUDA a GELU may see the product before it is rounded to a
/// 16-bit type, unless the context is deterministic. The activation is not gated.
#include <gradtile/layers/activation.h>
#include <gradtile/layers/column_sums.h>

namespace gradtile {

/// hidden = x W^T + b, y = f(hidden).
///   x [.., in], weight [out, in], bias [out] or undefined; hidden and y [.., out] are overwritten.
/// One float dtype (the bias may be in the type sums are kept in), rows contiguous, leading axes that merge
/// into one. Throws Error on other shapes, dtypes or strides, and on a
/// gated activation.
void linear_activation_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                               const Tensor& weight, const Tensor& bias, Activation activation);

/// d_hidden = (dy W) * f'(hidden): the gradient before the activation, through the layer W behind it.
///   dy [.., out], weight [out, in], hidden [.., in]; d_hidden [.., in] is overwritten, and is not hidden;
///   so is the room for its column sums, where there is any.
void linear_activation_backward(const Context& ctx, const SummedGradient& d_hidden, const Tensor& dy,
                                const Tensor& weight, const Tensor& hidden, Activation activation);

}  // namespace gradtile
