#pragma once
/// A matrix product and the GELU beside it as one operator, so that a device may apply GELU to the product's
/// tiles before they leave the chip. Values are those of Linear and Gelu one after the other; on the CPU, bit
/// for bit; on CUDA the GELU may see the product before it is rounded to a 16-bit type, unless the context is
/// deterministic.
#include <gradtile/layers/column_sums.h>
#include <gradtile/layers/gelu.h>

namespace gradtile {

/// hidden = x W^T + b, y = gelu(hidden).
///   x [.., in], weight [out, in], bias [out] or undefined; hidden and y [.., out] are overwritten.
/// One float dtype (the bias may be in the type sums are kept in), rows contiguous, leading axes that merge
/// into one. Throws Error on other shapes, dtypes or strides.
void linear_gelu_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                         const Tensor& weight, const Tensor& bias, Gelu::Form form);

/// d_hidden = (dy W) * gelu'(hidden): the gradient before the GELU, through the layer W behind it.
///   dy [.., out], weight [out, in], hidden [.., in]; d_hidden [.., in] is overwritten, and is not hidden;
///   so is the room for its column sums, where there is any.
void linear_gelu_backward(const Context& ctx, const SummedGradient& d_hidden, const Tensor& dy,
                          const Tensor& weight, const Tensor& hidden, Gelu::Form form);

}  // namespace gradtile
