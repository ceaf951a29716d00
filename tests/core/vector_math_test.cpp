#include <gradtile/core/cpu/vector_math.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace gradtile {
namespace {

/// Distance between y and the exact value, in units in the last place (ulps) of the float nearest to the
/// exact value.
double ulps(float y, double exact) {
    const float nearest = std::abs(static_cast<float>(exact));
    const double unit = nearest < std::numeric_limits<float>::min()
                            ? static_cast<double>(std::numeric_limits<float>::denorm_min())
                            : std::ldexp(1.0, std::ilogb(nearest) - 23);
    return std::abs(static_cast<double>(y) - exact) / unit;
}

/// Every 61st float in [low, high]; low and high have the same sign. The functions are evaluated in a loop
/// over arrays, as in kernels.
std::vector<float> grid(float low, float high) {
    std::vector<float> xs;
    const auto a = std::bit_cast<std::uint32_t>(std::abs(low)),
               b = std::bit_cast<std::uint32_t>(std::abs(high));
    for (std::uint64_t bits = std::min(a, b); bits <= std::max(a, b); bits += 61)
        xs.push_back(std::copysign(std::bit_cast<float>(static_cast<std::uint32_t>(bits)), low));
    return xs;
}

template <class Fast, class Exact>
double worst_ulps(float low, float high, Fast fast, Exact exact) {
    const std::vector<float> xs = grid(low, high);
    std::vector<float> ys(xs.size());
    for (std::size_t i = 0; i < xs.size(); ++i) ys[i] = fast(xs[i]);
    double worst = 0;
    for (std::size_t i = 0; i < xs.size(); ++i)
        worst = std::max(worst, ulps(ys[i], exact(static_cast<double>(xs[i]))));
    return worst;
}

float fast_exp(float x) {
    return vector_math::exp(x);
}
float fast_log(float x) {
    return vector_math::log(x);
}
float fast_tanh(float x) {
    return vector_math::tanh(x);
}
float fast_sigmoid(float x) {
    return vector_math::sigmoid(x);
}
double exact_exp(double x) {
    return std::exp(x);
}
double exact_log(double x) {
    return std::log(x);
}
double exact_tanh(double x) {
    return std::tanh(x);
}
double exact_sigmoid(double x) {
    return 1.0 / (1.0 + std::exp(-x));
}

constexpr float tiny = 1e-10f;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

TEST(VectorMath, ErrorsAreWithinTheDocumentedUlps) {
    EXPECT_LE(worst_ulps(tiny, 88.7228f, fast_exp, exact_exp), 1.1);
    EXPECT_LE(worst_ulps(-tiny, -87.3365f, fast_exp, exact_exp), 1.1);
    EXPECT_LE(worst_ulps(1e-44f, 3e38f, fast_log, exact_log), 0.9);
    EXPECT_LE(worst_ulps(tiny, 20.0f, fast_tanh, exact_tanh), 1.4);
    EXPECT_LE(worst_ulps(-tiny, -20.0f, fast_tanh, exact_tanh), 1.4);
    EXPECT_LE(worst_ulps(tiny, 90.0f, fast_sigmoid, exact_sigmoid), 2.5);
    EXPECT_LE(worst_ulps(-tiny, -87.0f, fast_sigmoid, exact_sigmoid), 2.5);
}

// The bound counts errors in halves of a unit in the last place: t = 1 / (1 + c |x|) has 3, which t p(t)
// multiplies by up to 3, so 9; the sum p adds 3, e^(-x^2/2) adds 2, and the two products add 2. The sum is 16
// halves, or 8 units. Rounding x^2 changes the result by up to x^2/2 units more.
TEST(VectorMath, NormalDistributionKeepsTheRelativeAccuracyOfItsTail) {
    for (const float sign : {1.0f, -1.0f})
        for (const float magnitude : grid(tiny, 12.0f)) {
            const float x = sign * magnitude;
            const auto exact = vector_math::normal(static_cast<double>(x));
            const auto fast = vector_math::normal(x);
            const double bound = 8 + static_cast<double>(x) * static_cast<double>(x) / 2;
            ASSERT_LE(ulps(fast.distribution, exact.distribution), bound) << x;
            ASSERT_LE(ulps(fast.gaussian, exact.gaussian), bound) << x;
        }
    EXPECT_EQ(vector_math::normal(-infinity).distribution, 0.0f);
    EXPECT_EQ(vector_math::normal(infinity).distribution, 1.0f);
    EXPECT_EQ(vector_math::normal(-3e38f).gaussian, 0.0f);
    EXPECT_TRUE(std::isnan(vector_math::normal(nan).distribution));
}

TEST(VectorMath, SpecialValuesAreThoseOfTheStandardFunctions) {
    EXPECT_EQ(fast_exp(0.0f), 1.0f);
    EXPECT_EQ(fast_exp(-infinity), 0.0f);
    EXPECT_EQ(fast_exp(-1e30f), 0.0f);
    EXPECT_EQ(fast_exp(infinity), infinity);
    EXPECT_EQ(fast_exp(89.0f), infinity);
    EXPECT_EQ(fast_log(0.0f), -infinity);
    EXPECT_EQ(fast_log(1.0f), 0.0f);
    EXPECT_EQ(fast_log(infinity), infinity);
    EXPECT_TRUE(std::isnan(fast_log(-1.0f)));
    EXPECT_EQ(fast_tanh(infinity), 1.0f);
    EXPECT_EQ(fast_tanh(-infinity), -1.0f);
    EXPECT_EQ(fast_sigmoid(-infinity), 0.0f);
    EXPECT_EQ(fast_sigmoid(infinity), 1.0f);
    EXPECT_TRUE(std::signbit(fast_tanh(-0.0f)));
    const float payload = std::bit_cast<float>(0x7fc00001u);
    for (const float x : {nan, payload}) {
        EXPECT_TRUE(std::isnan(fast_exp(x)));
        EXPECT_TRUE(std::isnan(fast_log(x)));
        EXPECT_TRUE(std::isnan(fast_tanh(x)));
        EXPECT_TRUE(std::isnan(fast_sigmoid(x)));
    }
}

TEST(VectorMath, ALoopOverAnArrayGivesTheSameBitsAsSingleCalls) {
    const std::vector<float> xs = grid(1e-3f, 80.0f);
    std::vector<float> ys(xs.size());
    for (std::size_t i = 0; i < xs.size(); ++i) ys[i] = vector_math::exp(-xs[i]);
    for (std::size_t i = 0; i < xs.size(); i += 1009) {
        volatile float x = -xs[i];  // volatile, so that this call is not vectorised
        EXPECT_EQ(ys[i], vector_math::exp(x));
    }
}

}  // namespace
}  // namespace gradtile
