#pragma once
/// Arithmetic on whole tensors, for user-defined losses and their gradients. Example, the mean squared error:
///
/// @code
/// const Tensor error = subtract(ctx, prediction, target);
/// const Tensor loss = mean(ctx, multiply(ctx, error, error));
/// // d_prediction = 2 (prediction - target) / n
/// const Tensor d_prediction = scale(ctx, error, 2.0 / error.elements());
/// @endcode
///
/// Every function takes floating-point tensors with any strides on ctx's device and returns a new contiguous
/// tensor there. On other operands it throws Error. Results are computed in float32 (float64 for float64) and
/// rounded once, to the result's dtype.
#include <gradtile/core/tensor.h>

namespace gradtile {

// Elementwise. a, b and the result have the same dtype. Shapes broadcast: axes are matched from the last one,
// and an axis that is missing or has length 1 is repeated. Throws Error on other shapes and on two dtypes.
Tensor add(const Context& ctx, const Tensor& a, const Tensor& b);
Tensor subtract(const Context& ctx, const Tensor& a, const Tensor& b);
Tensor multiply(const Context& ctx, const Tensor& a, const Tensor& b);
Tensor divide(const Context& ctx, const Tensor& a, const Tensor& b);
/// factor * x.
Tensor scale(const Context& ctx, const Tensor& x, double factor);
/// e^x; a float32 result below the smallest normal number may be 0.
Tensor exp(const Context& ctx, const Tensor& x);
/// The natural logarithm.
Tensor log(const Context& ctx, const Tensor& x);

// Reductions along one axis (a negative axis counts from the last). The axis stays, with length 1, so that
// the result broadcasts against x. The summation order is fixed and does not depend on the thread count.
/// The result is float32 (float64 for float64 x).
Tensor sum(const Context& ctx, const Tensor& x, int axis);
/// The result is float32 (float64 for float64 x). Throws Error when the axis has length 0.
Tensor mean(const Context& ctx, const Tensor& x, int axis);
/// The result has x's dtype and is NaN if an element is NaN. Throws Error when the axis has length 0.
Tensor max(const Context& ctx, const Tensor& x, int axis);

// Reductions over all elements. The result has shape []; item() returns its number.
Tensor sum(const Context& ctx, const Tensor& x);
Tensor mean(const Context& ctx, const Tensor& x);
Tensor max(const Context& ctx, const Tensor& x);

}  // namespace gradtile
