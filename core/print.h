#pragma once
/// A tensor's numbers as text.
#include <string>

#include <gradtile/core/tensor.h>

namespace gradtile {

/// The shape, dtype and device, and below them the elements in nested brackets, one line a row, in columns:
///
///     [2, 3] float32 on cpu
///     [[   1,  2.5,   -3],
///      [   4,    5, 1e+10]]
///
/// Five significant digits; int32 in full. Of tensors with more than 1000 elements each axis shows its first
/// and last three places. Any dtype, strides and device; waits for the work that computes x.
std::string to_string(const Context& ctx, const Tensor& x);
/// The same for a tensor on the CPU.
std::string to_string(const Tensor& x);

}  // namespace gradtile
