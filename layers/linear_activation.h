#pragma once
/// A matrix product and the following activation as one operator, so that a device can apply the activation
/// while the product is still in registers. The results are those of Linear followed by ActivationLayer. On
/// the CPU they are bit-identical; on CUDA, GELU may read the product before it is rounded to a 16-bit type,
/// unless the context is deterministic.
#include <gradtile/layers/activation.h>
#include <gradtile/layers/column_sums.h>

namespace gradtile {

/// hidden = x W^T + b, y = f(hidden).
///   x [.., in], weight [out, in], bias [out] or undefined; hidden [.., out] and y [.., out], or [.., out /
///   2] if the activation is gated, are overwritten.
/// All tensors have the same floating dtype; the bias may also have its accumulator_of(). Rows are
/// contiguous, and leading axes can be merged into one. Throws Error on other shapes, dtypes or strides,
/// and if an overwritten tensor shares memory with another operand.
void linear_activation_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                               const Tensor& weight, const Tensor& bias, Activation activation);

/// d_hidden = (dy W) * f'(hidden): the gradient with respect to hidden, where y = f(hidden) W^T.
///   dy [.., out], weight [out, in], hidden [.., in], or [.., 2 in] if the activation is gated; d_hidden,
///   with the shape of hidden, is overwritten. If d_hidden has a tensor for column sums, that tensor is
///   overwritten, too; with a gated activation it must have none.
void linear_activation_backward(const Context& ctx, const SummedGradient& d_hidden, const Tensor& dy,
                                const Tensor& weight, const Tensor& hidden, Activation activation);

}  // namespace gradtile
