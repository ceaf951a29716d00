#pragma once
/// A matrix product with GELU in the same pass: the wide hidden tensor of an MLP is not read again from
/// memory. Values are those of Linear and Gelu one after the other, rounded at the same places.
#include <gradtile/layers/gelu.h>

namespace gradtile {

/// hidden = x W^T + b, y = gelu(hidden).
///   x [.., in], weight [out, in], bias [out] or undefined; hidden and y [.., out] are overwritten.
/// One float dtype (the bias may be in the type sums are kept in), rows contiguous, leading axes that merge
/// into one. Throws Error on other shapes, dtypes or strides.
void linear_gelu_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                         const Tensor& weight, const Tensor& bias, Gelu::Form form);

/// d_hidden = (dy W) * gelu'(hidden): the gradient before the GELU, through the layer W behind it.
///   dy [.., out], weight [out, in], hidden [.., in]; d_hidden [.., in] is overwritten, and is not hidden.
void linear_gelu_backward(const Context& ctx, const Tensor& d_hidden, const Tensor& dy, const Tensor& weight,
                          const Tensor& hidden, Gelu::Form form);

}  // namespace gradtile
