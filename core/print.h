#pragma once
/// Tensor elements as text.
#include <string>

#include <gradtile/core/tensor.h>

namespace gradtile {

/// Returns the shape, dtype and device, and below them the elements in nested brackets, one line per row:
///
///     [2, 3] float32 on cpu
///     [[   1,  2.5,   -3],
///      [   4,    5, 1e+10]]
///
/// Floating-point elements have five significant digits. If a tensor has more than 1000 elements, only the
/// first three and last three places along each axis are shown. Accepts any dtype, strides and device; waits
/// for the work that computes x.
std::string to_string(const Context& ctx, const Tensor& x);
/// Returns the text for a tensor on the CPU.
std::string to_string(const Tensor& x);

}  // namespace gradtile
