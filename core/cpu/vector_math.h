#pragma once
/// exp, log, tanh and sigmoid without branches, so that the compiler can vectorise a loop over an array.
/// It cannot vectorise calls to libm's float functions. The double overloads call libm, because float64 is
/// for verification, not for speed.
///
/// Largest errors over all float inputs, in units in the last place (measured in
/// tests/core/vector_math_test): exp 1.1, log 0.9, tanh 1.4, sigmoid 2.5, normal 8 + x^2/2. NaN
/// stays NaN; exp results below the smallest normal float are 0. Coefficients are minimax fits, in which the
/// lowest-power coefficients were rounded to float first.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include <gradtile/core/host_device.h>

namespace gradtile::vector_math {

// exp, log and tanh are always_inline because kernels compiled for one instruction set use them: the linker
// might keep an out-of-line copy from such a kernel's source for the whole program, and other machines could
// not run this copy.

namespace detail {
[[gnu::always_inline]] inline float from_bits(std::uint32_t bits) {
    return std::bit_cast<float>(bits);
}
[[gnu::always_inline]] inline std::uint32_t to_bits(float x) {
    return std::bit_cast<std::uint32_t>(x);
}
[[gnu::always_inline]] inline float with_sign_of(float magnitude, float sign) {
    return from_bits((to_bits(magnitude) & 0x7fffffffu) | (to_bits(sign) & 0x80000000u));
}
/// ln 2 in two parts. The high part has 9 trailing zero bits, so its product with an exponent is exact.
inline constexpr float ln2_high = 0.693145751953125f;
inline constexpr float ln2_low = 1.42860682030941723e-6f;
}  // namespace detail

/// e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2.
[[gnu::always_inline]] inline float exp(float x) {
    constexpr float largest = 88.7228317f;      // ln(largest float)
    constexpr float smallest = -87.3365402f;    // ln(smallest normal float)
    constexpr float round_to_int = 12582912.f;  // 1.5 * 2^23: adding it leaves the integer in the low bits
    const float shifted = x * 1.44269504f + round_to_int;
    const float n = shifted - round_to_int;
    const float r = (x - n * detail::ln2_high) - n * detail::ln2_low;
    float q = 1.382146846e-03f;
    q = q * r + 8.368662558e-03f;
    q = q * r + 4.166825488e-02f;
    q = q * r + 1.666652113e-01f;
    q = q * r + 4.999999404e-01f;
    const float p = (q * (r * r) + r) + 1.0f;
    const float y = detail::from_bits(detail::to_bits(p) + (detail::to_bits(shifted) << 23));
    const float high_or_nan = x <= largest ? y : x + std::numeric_limits<float>::infinity();
    return x < smallest ? 0.0f : high_or_nan;
}

/// ln x = e ln 2 + ln(1 + f) with sqrt(1/2) <= 1 + f < sqrt(2).
[[gnu::always_inline]] inline float log(float x) {
    constexpr std::uint32_t sqrt_half = 0x3f3504f3u;
    const bool subnormal = x < std::numeric_limits<float>::min();
    const std::uint32_t bits = detail::to_bits(subnormal ? x * 0x1p23f : x) - sqrt_half;
    const float exponent =
        static_cast<float>(static_cast<std::int32_t>(bits) >> 23) - (subnormal ? 23.0f : 0.0f);
    const float f = detail::from_bits((bits & 0x007fffffu) + sqrt_half) - 1.0f;
    float q = 6.749267876e-02f;
    q = q * f - 1.167009771e-01f;
    q = q * f + 1.188354865e-01f;
    q = q * f - 1.240623370e-01f;
    q = q * f + 1.422035843e-01f;
    q = q * f - 1.666798890e-01f;
    q = q * f + 2.000207156e-01f;
    q = q * f - 2.500000894e-01f;
    q = q * f + 3.333331347e-01f;
    const float square = f * f;
    const float tail = exponent * detail::ln2_low + (q * (square * f) - 0.5f * square);
    const float y = exponent * detail::ln2_high + (f + tail);
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const float finite_or_special = x < infinity ? y : x;  // +inf and NaN
    const float not_negative = x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : finite_or_special;
    return x == 0.0f ? -infinity : not_negative;
}

/// x + x^3 p(x^2) near 0, 1 - 2 / (e^2x + 1) elsewhere.
[[gnu::always_inline]] inline float tanh(float x) {
    const float t = detail::with_sign_of(x, 1.0f), square = x * x;
    float p = -5.692296196e-03f;
    p = p * square + 2.062816732e-02f;
    p = p * square - 5.373651534e-02f;
    p = p * square + 1.333140582e-01f;
    p = p * square - 3.333328068e-01f;
    const float near = x + x * (square * p);
    const float far = 1.0f - 2.0f / (exp(2.0f * t) + 1.0f);
    return detail::with_sign_of(t < 0.625f ? near : far, x);
}

/// 1 / (1 + e^-x)
inline float sigmoid(float x) {
    return 1.0f / (1.0f + exp(-x));
}

/// Phi(x), the normal distribution function, and e^(-x^2/2), its density times sqrt(2 pi). Both need the same
/// exponential.
template <class T>
struct Normal {
    T distribution, gaussian;
};

/// The tail is Phi(-|x|) = e^(-x^2/2) R / 2. R = erfcx(|x| / sqrt 2) is computed as t p(t) with a polynomial
/// p and t = 1 / (1 + 0.37 |x| / sqrt 2). Because the exponential is a separate factor, only the rounding of
/// x^2 limits the relative accuracy. The caller computes the exponential and t = 1 / normal_divisor(x),
/// because devices have special instructions for them.
GRADTILE_HOST_DEVICE constexpr float normal_divisor(float x) {
    return 1.0f + 0.261629509f * (x < 0.0f ? -x : x);
}
GRADTILE_HOST_DEVICE constexpr float normal_tail(float gaussian, float t) {
    float p = 6.206048280e-02f;
    p = p * t - 3.039421439e-01f;
    p = p * t + 4.882294536e-01f;
    p = p * t - 2.869088948e-01f;
    p = p * t + 3.119153678e-01f;
    p = p * t + 1.060398445e-01f;
    p = p * t + 2.063791603e-01f;
    p = p * t + 2.074118853e-01f;
    p = p * t + 2.088148296e-01f;
    return 0.5f * gaussian * (t * p);
}
GRADTILE_HOST_DEVICE constexpr Normal<float> normal(float x, float gaussian, float t) {
    const float tail = normal_tail(gaussian, t);
    return {x < 0.0f ? tail : 1.0f - tail, gaussian};
}
inline Normal<float> normal(float x) {
    return normal(x, exp(-0.5f * (x * x)), 1.0f / normal_divisor(x));
}

inline double exp(double x) {
    return std::exp(x);
}
inline double log(double x) {
    return std::log(x);
}
inline double tanh(double x) {
    return std::tanh(x);
}
inline double sigmoid(double x) {
    return 1.0 / (1.0 + std::exp(-x));
}
inline Normal<double> normal(double x) {
    return {0.5 * std::erfc(-x * (std::numbers::sqrt2 / 2)), std::exp(-0.5 * (x * x))};
}

}  // namespace gradtile::vector_math
