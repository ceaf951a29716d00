#pragma once
/// Arithmetic on whole tensors, enough for a loss of one's own and its gradient:
///
///     // mean squared error: loss = mean((prediction - target)^2), d_prediction = 2 (prediction - target) /
///     n const Tensor error = subtract(ctx, prediction, target); const Tensor loss = mean(ctx, multiply(ctx,
///     error, error)); const Tensor d_prediction = scale(ctx, error, 2.0 / error.elements());
///
/// Every function returns a new contiguous tensor on ctx's device and takes tensors of any strides. Operands
/// are floating-point tensors on ctx's device, else Error. Results are computed in float32 (float64 for
/// float64) and rounded once, to the dtype returned.
#include <gradtile/core/tensor.h>

namespace gradtile {

// Elementwise. a and b have one dtype, the result's. Their shapes broadcast: axes are matched from the last,
// and one of length 1, or missing, is repeated. Throws Error on other shapes or on two dtypes.
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

// Reductions along one axis (a negative one counts from the last). The axis stays, with length 1, so that the
// result broadcasts against x. Orders of addition are fixed: results do not depend on the number of threads.
/// float32 (float64 for float64).
Tensor sum(const Context& ctx, const Tensor& x, int axis);
/// As sum(). Throws Error when the axis has length 0.
Tensor mean(const Context& ctx, const Tensor& x, int axis);
/// x's dtype; NaN where an element is NaN. Throws Error when the axis has length 0.
Tensor max(const Context& ctx, const Tensor& x, int axis);

// Reductions over all elements, to shape []: item() reads the number.
Tensor sum(const Context& ctx, const Tensor& x);
Tensor mean(const Context& ctx, const Tensor& x);
Tensor max(const Context& ctx, const Tensor& x);

}  // namespace gradtile
