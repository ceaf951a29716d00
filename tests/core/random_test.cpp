#include <gradtile/core/random.h>

#include <cmath>

#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

constexpr std::int64_t n = 200000;
/// The bounds are six standard deviations. A correct generator exceeds them for one seed in 5e8, and the seed
/// is fixed.
constexpr double sigmas = 6.0;

double mean_of_power(const std::vector<double>& values, int power) {
    double sum = 0.0;
    for (const double value : values) sum += std::pow(value, power);
    return sum / static_cast<double>(values.size());
}
/// The bound for the mean over n independent draws with this variance.
double bound(double variance) {
    return sigmas * std::sqrt(variance / static_cast<double>(n));
}

TEST(Random, NormalMomentsLieWithinTheirStandardErrors) {
    const Context ctx(Device::cpu(), 2);
    const auto x = to_host(ctx, randn(ctx, {n}, DType::f64, Seed{7}));
    // E x^2k = 1, 3, 15, 105, 945, 10395 for k = 1..6; Var x^k = E x^2k - (E x^k)^2.
    EXPECT_NEAR(mean_of_power(x, 1), 0.0, bound(1));
    EXPECT_NEAR(mean_of_power(x, 2), 1.0, bound(3 - 1));
    EXPECT_NEAR(mean_of_power(x, 3), 0.0, bound(15));
    EXPECT_NEAR(mean_of_power(x, 4), 3.0, bound(105 - 9));
    double neighbours = 0.0;  // correlations within Box-Muller pairs and between adjacent pairs
    for (std::size_t i = 0; i + 1 < x.size(); ++i) neighbours += x[i] * x[i + 1];
    EXPECT_NEAR(neighbours / static_cast<double>(n), 0.0, bound(1));
}

TEST(Random, UniformMomentsLieWithinTheirStandardErrors) {
    const Context ctx(Device::cpu(), 2);
    const auto u = to_host(ctx, rand(ctx, {n}, DType::f64, Seed{7}));
    for (const double value : u) ASSERT_TRUE(value >= 0.0 && value < 1.0);
    EXPECT_NEAR(mean_of_power(u, 1), 1.0 / 2, bound(1.0 / 12));
    EXPECT_NEAR(mean_of_power(u, 2), 1.0 / 3, bound(1.0 / 5 - 1.0 / 9));
    double below_quarter = 0;
    for (const double value : u) below_quarter += value < 0.25;
    EXPECT_NEAR(below_quarter / static_cast<double>(n), 0.25, bound(0.25 * 0.75));
}

TEST(Random, DrawsDependOnSeedAndIndexAlone) {
    const Context one(Device::cpu(), 1), three(Device::cpu(), 3);
    const auto x = to_host(one, randn(one, {20001}, DType::f64, Seed{5}));
    EXPECT_EQ(to_host(three, randn(three, {20001}, DType::f64, Seed{5})), x);
    const auto reshaped = to_host(three, randn(three, {3, 6667}, DType::f64, Seed{5}));
    EXPECT_EQ(reshaped, x);
    const auto shorter = to_host(three, randn(three, {100}, DType::f64, Seed{5}));
    EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), x.begin()));
    EXPECT_NE(to_host(one, randn(one, {20001}, DType::f64, Seed{6})), x);
}

TEST(Random, OtherDtypesAreTheSameNumbersRounded) {
    const Context ctx(Device::cpu(), 2);
    const auto x = to_host(ctx, randn(ctx, {1000}, DType::f64, Seed{5}));
    const auto shorter = to_host(ctx, randn(ctx, {1000}, DType::bf16, Seed{5}));
    for (std::size_t i = 0; i < x.size(); ++i)
        EXPECT_EQ(shorter[i], convert<double>(convert<bfloat16>(x[i])));
}

TEST(Random, FillNormalShiftsAndScalesInPlace) {
    const Context ctx(Device::cpu(), 2);
    const auto standard = to_host(ctx, randn(ctx, {501}, DType::f64, Seed{5}));
    const Tensor x = zeros(ctx, {501}, DType::f64);
    fill_normal(ctx, x, 3.0, 0.02, Seed{5});
    const auto got = to_host(ctx, x);
    // The compiler may fuse the multiplication and the addition here or in fill_normal(), so the bound is 4
    // units in the last place.
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_DOUBLE_EQ(got[i], 3.0 + 0.02 * standard[i]);
}

TEST(Random, AcceptsTensorsWithoutElements) {
    const Context ctx(Device::cpu(), 2);
    EXPECT_TRUE(to_host(ctx, randn(ctx, {0, 3}, DType::f32, Seed{1})).empty());
    EXPECT_EQ(to_host(ctx, rand(ctx, {}, DType::f32, Seed{1})).size(), 1u);
}

}  // namespace
}  // namespace gradtile
