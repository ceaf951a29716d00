// Sums of gradients in bfloat16, on CPU and GPU.
#include <gradtile/train/parallel/internal/rounded_sum.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/optimizers/internal/moment_rounding.h>

#include <support/cuda_test.h>
#include <support/error_message.h>

namespace gradtile::test {
namespace {

constexpr std::uint64_t run_seed = 7;
constexpr std::int64_t step = 3;

DropoutKey key_in_memory(const Context& ctx) {
    const auto words = DropoutKey::seed_words(run_seed, step);
    return DropoutKey::from_seed_tensor(from_host(ctx, words, {2}));
}

/// Each sum is computed in float32, and rounded with 16 bits of the draw for its four neighbours.
void expect_documented_rounding(const Context& ctx) {
    constexpr std::int64_t n = 64 * 517, element = 192;
    const Tensor sums = randn(ctx, {n}, DType::bf16, Seed{1}), x = randn(ctx, {n}, DType::f32, Seed{2});
    const std::vector<double> before = to_host(ctx, sums), added = to_host(ctx, x);
    add_rounded(ctx, sums, x, key_in_memory(ctx).at(11).at(2), element);
    const std::vector<double> after = to_host(ctx, sums);
    const Philox::Key key = philox_key(mix_seed(mix_seed(mix_seed(run_seed, step), 11), 2));
    for (std::int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const auto four = static_cast<std::uint32_t>((element + i) / 4);
        const std::uint32_t word = Philox::draw({four, 0, 0, 0}, key)[at % 4];
        const float sum = static_cast<float>(before[at]) + static_cast<float>(added[at]);
        ASSERT_EQ(after[at], static_cast<float>(rounded_stochastically(sum, word & 0xffffu))) << i;
    }
}

TEST(RoundedSum, RoundsAsDocumented) {
    for (const int threads : {1, 3}) expect_documented_rounding(Context(Device::cpu(), threads));
}

TEST(RoundedSum, DoesNotDependOnTheDivisionIntoShards) {
    const Context ctx(Device::cpu(), 1);
    constexpr std::int64_t n = 64 * 300;
    const Tensor whole = randn(ctx, {n}, DType::bf16, Seed{1}), parts = cast(ctx, whole, DType::bf16),
                 x = randn(ctx, {n}, DType::f32, Seed{2});
    add_rounded(ctx, whole, x, key_in_memory(ctx), 640);
    for (const auto& [begin, length] :
         {std::pair<std::int64_t, std::int64_t>{0, 64}, {64, 12800}, {12864, 6336}})
        add_rounded(ctx, parts.slice(0, begin, length), x.slice(0, begin, length), key_in_memory(ctx),
                    640 + begin);
    EXPECT_EQ(to_host(ctx, parts), to_host(ctx, whole));
}

/// Neighbours of 1 in bfloat16 are 2^-7 apart, so 2^-10 is lost when it is added to nearest. Added 1,024
/// times the mean is 2. An addition's rounding error has the mean 0 and a variance of at most (2^-6)^2 / 4
/// below 4, so the mean of n sums has a variance of at most 1024 2^-14 / n; the bound is 6 standard
/// deviations.
void expect_unbiased_sums(const Context& ctx) {
    constexpr std::int64_t n = 1 << 14;
    const Tensor rounded = zeros(ctx, {n}, DType::bf16), nearest = zeros(ctx, {n}, DType::bf16),
                 x = zeros(ctx, {n}, DType::f32);
    fill(ctx, rounded, 1.0);
    fill(ctx, nearest, 1.0);
    fill(ctx, x, 0x1p-10);
    const DropoutKey key = key_in_memory(ctx);
    for (std::uint64_t k = 0; k < 1024; ++k) {
        add_rounded(ctx, rounded, x, key.at(k), 0);
        axpy(ctx, nearest, 1.0, x);
    }
    double sum = 0.0;
    for (const double s : to_host(ctx, rounded)) sum += s;
    EXPECT_NEAR(sum / n, 2.0, 6.0 * std::sqrt(1024 * 0x1p-14 / n));
    EXPECT_THAT(to_host(ctx, nearest), testing::Each(1.0));
}

TEST(RoundedSum, HasNoBias) {
    expect_unbiased_sums(Context(Device::cpu(), 2));
}

TEST(RoundedSum, KeepsInfinityAndNaNAndZero) {
    const Context ctx(Device::cpu(), 1);
    const double infinity = INFINITY;
    const Tensor sums = from_host(ctx, std::vector<double>{0, 1, 1, infinity}, {4}, DType::bf16),
                 x = from_host(ctx, std::vector<double>{0, NAN, -infinity, 1}, {4}, DType::f32);
    add_rounded(ctx, sums, x, key_in_memory(ctx), 0);
    EXPECT_THAT(to_host(ctx, sums), testing::ElementsAre(0.0, testing::IsNan(), -infinity, infinity));
}

TEST(RoundedSum, RefusesOtherTensors) {
    const Context ctx(Device::cpu(), 1);
    const Tensor sums = zeros(ctx, {64}, DType::bf16);
    for (const Tensor& x : {zeros(ctx, {63}, DType::f32), zeros(ctx, {64}, DType::f64)})
        EXPECT_THAT(message_of([&] { add_rounded(ctx, sums, x, key_in_memory(ctx), 0); }),
                    testing::HasSubstr("add_rounded: x"));
}

using CudaRoundedSum = test::CudaTest;

TEST_F(CudaRoundedSum, RoundsAsDocumented) {
    expect_documented_rounding(gpu());
}

TEST_F(CudaRoundedSum, HasNoBias) {
    expect_unbiased_sums(gpu());
}

}  // namespace
}  // namespace gradtile::test
