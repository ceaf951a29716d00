#pragma once
/// The difference between two tensors, for assertions in tests and as printed text.
#include <iosfwd>

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

}  // namespace gradtile
