#pragma once
/// Compares tensors, and prints their elements as text.
#include <iosfwd>
#include <string>

#include <gradtile/core/tensor.h>

namespace gradtile {

/// The largest differences between a tensor and its reference, computed in float64. Equal infinities and two
/// NaNs count as equal. A NaN or an infinity on one side only counts as an infinite error.
struct Comparison {
    struct Place {
        double error = 0.0;
        Shape index = {};  ///< the element's index
        double value = 0.0, reference = 0.0;
    };
    Place absolute;           ///< largest |value - reference|
    Place relative;           ///< largest |value - reference| / |reference|
    double norm_error = 0.0;  ///< ||value - reference|| / ||reference||, Euclidean (0 / 0 is 0)
    double largest = 0.0;     ///< largest finite |reference|
    std::int64_t elements = 0;
    std::int64_t different = 0;  ///< elements that are not equal
};

/// Compares tensors with equal shapes; dtypes and strides may differ. Waits for the work that computes the
/// elements.
Comparison compare(const Context& ctx, const Tensor& x, const Tensor& reference);
/// Compares tensors on the CPU.
Comparison compare(const Tensor& x, const Tensor& reference);

/// Returns one line with the largest absolute and relative errors, their indices and their values.
std::ostream& operator<<(std::ostream& out, const Comparison& comparison);

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
