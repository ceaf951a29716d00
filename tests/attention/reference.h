#pragma once
/// Attention from its definition, one pair (row, key) after the other in float64, and how far from it a
/// computation in shorter numbers may lie. Shares no code with the operator, its mask included.
#include <limits>

#include "attention_testing.h"

namespace gradtile::attention::test {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// Roundings of a dtype, relative: of its arithmetic, and of the results it stores.
struct Roundoff {
    double arithmetic;
    double storage;
};
inline constexpr Roundoff float64_roundoff{0x1p-53, 0x1p-53};
inline constexpr Roundoff float32_roundoff{0x1p-24, 0x1p-24};
inline constexpr Roundoff float16_roundoff{0x1p-24, 0x1p-11};
inline constexpr Roundoff bfloat16_roundoff{0x1p-24, 0x1p-8};

struct Reference {
    Result value;
    /// Element by element, what flash's own roundings may add to the error of the textbook's:
    /// docs/numerics.md, "What the tests allow".
    Result floor;
};
Reference reference_of(const Context& ctx, const Problem& problem, const Inputs& inputs,
                       const Roundoff& roundoff);

/// Largest |a - b|; equal infinities differ by 0, NaN from anything by infinity.
double largest_error(const std::vector<double>& a, const std::vector<double>& b);

/// How many times the naive form's error is allowed, before the floor.
struct Factors {
    double forward;
    double gradients;
};
/// Every element of `result` lies within factor * (largest error of `naive`) + floor of the reference.
void expect_as_accurate_as(const Result& naive, const Result& result, const Reference& reference,
                           const Factors& factors);

/// `result` was computed in float64 from inputs that are float32 numbers. It makes the roundings of the
/// float32 computation, 2^29 times smaller; `naive32` shows how large those are. The reference makes them
/// too, so both sides' errors are allowed.
void expect_float64_accuracy(const Result& naive32, const Result& result, const Reference& reference);

}  // namespace gradtile::attention::test
