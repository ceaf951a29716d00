#pragma once
/// Expectations on what attention/accuracy.h finds.
#include <limits>

#include "attention_testing.h"

namespace gradtile::attention::test {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// Every element of `result` lies within factor * (largest error of `naive`) + floor of the reference.
void expect_as_accurate_as(const Result& naive, const Result& result, const Reference& reference,
                           const Factors& factors);

/// The same by the dtype's policy, and in root mean square.
void expect_accurate(DType dtype, const Result& naive, const Result& result, const Reference& reference);
/// Errors have no direction. Only for rows that differ.
void expect_no_bias(const Problem& problem, const Result& result, const Reference& reference);

/// `result` was computed in float64 from inputs that are float32 numbers. It makes the roundings of the
/// float32 computation, 2^29 times smaller; `naive32` shows how large those are. The reference makes them
/// too, so both sides' errors are allowed.
void expect_float64_accuracy(const Result& naive32, const Result& result, const Reference& reference);

}  // namespace gradtile::attention::test
