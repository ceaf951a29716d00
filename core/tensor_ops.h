#pragma once
/// Filling, copying and adding whole tensors of any strides. Dtypes may differ where a comment says so.
#include <span>
#include <vector>

#include <gradtile/core/tensor.h>

namespace gradtile {

/// x = value.
void fill(const Context& ctx, const Tensor& x, double value);
/// destination = source, converted to destination's dtype; shapes must be equal. Same device.
void copy(const Context& ctx, const Tensor& destination, const Tensor& source);
/// y += alpha * x; shapes must be equal, dtypes may differ (the sum is rounded once, to y's dtype).
void axpy(const Context& ctx, const Tensor& y, double alpha, const Tensor& x);
/// A contiguous copy of x in the given dtype.
Tensor cast(const Context& ctx, const Tensor& x, DType dtype);

/// A contiguous tensor on ctx's device that holds the given host values in row-major order, converted to
/// dtype. Waits for the copy. Throws Error unless there are shape.elements() values.
Tensor from_host(const Context& ctx, std::span<const double> values, const Shape& shape, DType dtype);
Tensor from_host(const Context& ctx, std::span<const float> values, const Shape& shape,
                 DType dtype = DType::f32);
Tensor from_host(const Context& ctx, std::span<const std::int32_t> values, const Shape& shape);
/// x on ctx's device: x itself if it is there already, else a contiguous copy of a host tensor. Waits for the
/// copy.
Tensor to_device(const Context& ctx, const Tensor& x);
/// The elements in row-major order, as double. Waits for the work that computes them.
std::vector<double> to_host(const Context& ctx, const Tensor& x);
/// The value of a one-element tensor. Waits for the device. 0 while planning.
double item(const Context& ctx, const Tensor& x);

}  // namespace gradtile
