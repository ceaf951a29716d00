#pragma once
/// Fills, copies and adds whole tensors with any strides. Dtypes may differ only where a comment says so. A
/// tensor that is written may be the same view as the tensor that is read; copy() and axpy() throw Error if
/// the two share memory in another way, and if elements of the tensor that is written share memory.
#include <span>
#include <vector>

#include <gradtile/core/tensor.h>

namespace gradtile {

/// x = value.
void fill(const Context& ctx, const Tensor& x, double value);
/// destination = source, converted to destination's dtype. Shapes and devices must be equal.
void copy(const Context& ctx, const Tensor& destination, const Tensor& source);
/// y += alpha * x. Shapes must be equal; dtypes may differ (the sum is rounded once, to y's dtype).
void axpy(const Context& ctx, const Tensor& y, double alpha, const Tensor& x);
/// Returns a contiguous copy of x in the given dtype.
Tensor cast(const Context& ctx, const Tensor& x, DType dtype);

/// Returns a contiguous tensor on ctx's device with the given host values in row-major order, converted to
/// dtype. Waits for the copy. Throws Error unless there are shape.elements() values.
Tensor from_host(const Context& ctx, std::span<const double> values, const Shape& shape, DType dtype);
Tensor from_host(const Context& ctx, std::span<const float> values, const Shape& shape,
                 DType dtype = DType::f32);
Tensor from_host(const Context& ctx, std::span<const std::int32_t> values, const Shape& shape);
/// Returns x itself if x is on ctx's device; otherwise x must be on the host, and the result is a contiguous
/// copy on ctx's device. Waits for the copy.
Tensor to_device(const Context& ctx, const Tensor& x);
/// Returns x's elements in row-major order, as double. Waits for the work that computes them.
std::vector<double> to_host(const Context& ctx, const Tensor& x);
/// Returns the value in a one-element tensor, after waiting for the device. Returns 0 in a dry run.
double item(const Context& ctx, const Tensor& x);

}  // namespace gradtile
