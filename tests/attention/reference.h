#pragma once
/// GoogleTest expectations about the comparisons of attention/accuracy.h.
#include <limits>

#include "attention_testing.h"

namespace gradtile::attention::test {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// Expects every element of `result` within factor * (largest error of `naive`) + floor of the reference.
void expect_as_accurate_as(const Result& naive, const Result& result, const Reference& reference,
                           const Factors& factors);

/// Expects every element and the root mean square error of `result` within the bounds of the dtype.
void expect_accurate(DType dtype, const Result& naive, const Result& result, const Reference& reference);
/// Expects that positive and negative errors are equally likely. The rows of the problem must differ from
/// each other.
void expect_no_bias(const Problem& problem, const Result& result, const Reference& reference);

/// Expects the accuracy of a float64 computation. `result` comes from inputs that are float32 numbers. The
/// roundings of `result` are 2^29 times smaller than those of a float32 computation, whose size `naive32`
/// shows. The reference rounds in float64, too, so the bound allows the errors of both.
void expect_float64_accuracy(const Result& naive32, const Result& result, const Reference& reference);

}  // namespace gradtile::attention::test
