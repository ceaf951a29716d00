#pragma once
/// GoogleTest expectations about the comparisons in attention/accuracy.h.
#include <limits>

#include "attention_testing.h"

namespace gradtile::attention::test {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// Expects |result - reference| <= factor * (naive's largest error) + floor for every element.
void expect_as_accurate_as(const Result& naive, const Result& result, const Reference& reference,
                           const Factors& factors);

/// Expects every element of `result` and its root mean square error within the dtype's bounds.
void expect_accurate(DType dtype, const Result& naive, const Result& result, const Reference& reference);
/// Expects that positive and negative errors are equally likely. The problem's rows must differ from each
/// other.
void expect_no_bias(const Problem& problem, const Result& result, const Reference& reference);

/// Expects float64 accuracy. `result` comes from inputs that are float32 numbers. Its roundings are 2^29
/// times smaller than in a float32 computation, whose error size `naive32` shows. The reference rounds in
/// float64, too, so the bound allows both errors.
void expect_float64_accuracy(const Result& naive32, const Result& result, const Reference& reference);

}  // namespace gradtile::attention::test
