#include <gradtile/train/optimizers/global_norm.h>

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include "optimizer_problems.h"

namespace gradtile {
namespace {

using test::reference_norm;

/// Bounds the relative error of a float64 sum over n squares, and of its root, for any summation order.
double bound(std::int64_t n) {
    return static_cast<double>(n + 2) * std::numeric_limits<double>::epsilon();
}

TEST(GlobalNorm, EqualsTheLongDoubleSumAtAnyLength) {
    const Context ctx;
    for (const std::int64_t n : {1, 31, 32, 33, 32768, 32769, 100001})
        for (const DType dtype : {DType::f32, DType::f64}) {
            const Tensor x = randn(ctx, {n}, dtype, Seed{7});
            const double expected = reference_norm(to_host(ctx, x));
            EXPECT_NEAR(item(ctx, global_norm(ctx, x)), expected, expected * bound(n)) << n;
        }
}

TEST(GlobalNorm, NeitherOverflowsNorUnderflowsInFloat32) {
    const Context ctx;
    for (const double value : {1e38, 1e-38}) {
        const Tensor x = empty(ctx, {1000}, DType::f32);
        fill(ctx, x, value);
        const double expected = static_cast<double>(static_cast<float>(value)) * std::sqrt(1000.0);
        EXPECT_NEAR(item(ctx, global_norm(ctx, x)), expected, expected * bound(1000));
    }
}

TEST(GlobalNorm, DoesNotDependOnTheNumberOfThreads) {
    const Tensor x = randn(Context(Device::cpu(), 1), {300000}, DType::f32, Seed{3});
    const Context one(Device::cpu(), 1), three(Device::cpu(), 3);
    EXPECT_EQ(item(one, global_norm(one, x)), item(three, global_norm(three, x)));
}

TEST(GlobalNorm, RefusesStridedTensors) {
    const Context ctx;
    EXPECT_THROW(global_norm(ctx, zeros(ctx, {4, 4}, DType::f32).transpose(0, 1)), Error);
}

TEST(ClipGlobalNorm, ScalesLargeGradientsToMaxNormAndKeepsSmallOnes) {
    const Context ctx;
    const Tensor x = from_host(ctx, std::vector<double>{3.0, 4.0}, {2}, DType::f32);
    EXPECT_EQ(item(ctx, clip_global_norm(ctx, x, {.max_norm = 1.0}).scale), 0.2);
    EXPECT_EQ(item(ctx, clip_global_norm(ctx, x, {.max_norm = 5.0}).scale), 1.0);
    EXPECT_EQ(item(ctx, clip_global_norm(ctx, x).scale), 1.0);
}

TEST(ClipGlobalNorm, RefusesTheUpdateWhenGradientOrLossIsNotFinite) {
    const Context ctx;
    const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
    for (const double bad : {infinity, -infinity, nan}) {
        const Tensor x = from_host(ctx, std::vector<double>{1.0, bad, 1.0}, {3}, DType::f32);
        EXPECT_EQ(item(ctx, clip_global_norm(ctx, x, {.max_norm = 1.0}).scale), 0.0);
        const Tensor good = from_host(ctx, std::vector<double>{1.0}, {1}, DType::f32);
        const Tensor loss = from_host(ctx, std::vector<double>{bad}, {1}, DType::f32);
        EXPECT_EQ(item(ctx, clip_global_norm(ctx, good, {.max_norm = 1.0, .loss = loss}).scale), 0.0);
    }
}

TEST(ClipGlobalNorm, RefusesTheUpdateAfterAnInterruptionThatTheSumsDoNotShow) {
    const Context ctx;
    const Tensor x = from_host(ctx, std::vector<double>{3.0, 4.0}, {2}, DType::f32),
                 interruption = zeros(ctx, {1}, DType::f64);
    const Clip undisturbed = clip_global_norm(ctx, x, {.interruption = interruption});
    EXPECT_EQ(item(ctx, undisturbed.scale), 1.0);
    EXPECT_EQ(item(ctx, undisturbed.norm), 5.0);
    // A loss may be noticed as late as in the last sum.
    const Clip clip =
        clip_global_norm(ctx, x, {.interruption = interruption, .add_other_parts = [&](const Tensor&) {
                                      fill(ctx, interruption, 1.0);
                                  }});
    EXPECT_EQ(item(ctx, clip.scale), 0.0);
    EXPECT_TRUE(std::isnan(item(ctx, clip.norm)));
}

TEST(ClipGlobalNorm, RefusesAnInterruptionOfAnotherType) {
    const Context ctx;
    const Tensor x = zeros(ctx, {2}, DType::f32);
    EXPECT_THROW(clip_global_norm(ctx, x, {.interruption = zeros(ctx, {1}, DType::f32)}), Error);
    EXPECT_THROW(clip_global_norm(ctx, x, {.interruption = zeros(ctx, {2}, DType::f64)}), Error);
}

}  // namespace
}  // namespace gradtile
