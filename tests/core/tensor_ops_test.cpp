#include <gradtile/core/tensor_ops.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/random.h>

#include <support/cpu_context.h>
#include <support/error_message.h>
#include <support/floating_dtypes.h>

namespace gradtile {
namespace {

using test::ctx;
using test::floating_dtypes;
using test::rounded;

/// Tensors with shape [7, 12], one for each kind of view that operators accept.
std::vector<Tensor> views(DType type, std::uint64_t seed) {
    return {randn(ctx, {7, 12}, type, Seed{seed}), randn(ctx, {12, 7}, type, Seed{seed}).transpose(0, 1),
            randn(ctx, {7, 20}, type, Seed{seed}).slice(1, 3, 12),
            randn(ctx, {7, 12, 3}, type, Seed{seed}).select(2, 1),
            randn(ctx, {14, 12}, type, Seed{seed}).reshape({7, 2, 12}).select(1, 1)};
}

TEST(Copy, ConvertsBetweenAllDtypesAndStrides) {
    for (const DType to : floating_dtypes)
        for (const DType from : floating_dtypes)
            for (const Tensor& destination : views(to, 1))
                for (const Tensor& source : views(from, 2)) {
                    const auto expected = to_host(ctx, source);
                    copy(ctx, destination, source);
                    const auto got = to_host(ctx, destination);
                    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], rounded(expected[i], to));
                }
}

TEST(Copy, RepeatsStrideZeroSources) {
    const Tensor row = randn(ctx, {1, 12}, DType::f32, Seed{1}), x = zeros(ctx, {7, 12}, DType::bf16);
    copy(ctx, x, row.expand({7, 12}));
    const auto got = to_host(ctx, x), expected = to_host(ctx, row);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], rounded(expected[i % 12], DType::bf16));
    const Tensor scalar = from_host(ctx, std::vector<double>{2.5}, {}, DType::f32);
    copy(ctx, x, scalar.expand({7, 12}));
    EXPECT_THAT(to_host(ctx, x), testing::Each(2.5));
}

TEST(TensorOps, RefuseToWriteOneElementSeveralTimes) {
    const Tensor row = zeros(ctx, {1, 12}, DType::f32), x = randn(ctx, {7, 12}, DType::f32, Seed{1});
    EXPECT_THAT(test::message_of([&] {
                    copy(ctx, row.expand({7, 12}), x);
                }),
                testing::HasSubstr("copy: destination [7, 12] float32 on cpu has stride 0 along axis 0"));
    EXPECT_THAT(test::message_of([&] {
                    axpy(ctx, row.expand({7, 12}), 1.0, x);
                }),
                testing::HasSubstr("axpy: y [7, 12] float32 on cpu has stride 0 along axis 0"));
    EXPECT_THAT(to_host(ctx, row), testing::Each(0.0));
}

TEST(Copy, DoesNotWriteBetweenRows) {
    const Tensor x = zeros(ctx, {7, 20}, DType::f32);
    copy(ctx, x.slice(1, 3, 12), randn(ctx, {7, 12}, DType::f32, Seed{1}));
    EXPECT_THAT(to_host(ctx, x.slice(1, 0, 3)), testing::Each(0.0));
    EXPECT_THAT(to_host(ctx, x.slice(1, 15, 5)), testing::Each(0.0));
}

TEST(Copy, IntegersKeepTheirValues) {
    const std::vector<std::int32_t> tokens{0, 1, -5, 65535, 2147483647, -2147483647 - 1};
    const Tensor x = from_host(ctx, tokens, {6});
    EXPECT_THAT(to_host(ctx, x), testing::ElementsAreArray(tokens));
    EXPECT_THAT(to_host(ctx, cast(ctx, x, DType::f64)), testing::ElementsAreArray(tokens));
}

TEST(Copy, RefusesUnequalShapes) {
    EXPECT_THROW(copy(ctx, zeros(ctx, {2, 3}, DType::f32), zeros(ctx, {3, 2}, DType::f32)), Error);
}

TEST(Axpy, AddsOverAllDtypesAndStrides) {
    for (const DType to : floating_dtypes)
        for (const DType from : floating_dtypes)
            for (const Tensor& y : views(to, 1))
                for (const Tensor& x : views(from, 2)) {
                    const auto before = to_host(ctx, y), xs = to_host(ctx, x);
                    axpy(ctx, y, -0.5, x);  // the factor is a power of two, so the product is exact and only
                                            // the sum is rounded
                    const auto got = to_host(ctx, y);
                    const DType sum_type = accumulator_of(to);
                    for (std::size_t i = 0; i < got.size(); ++i) {
                        const double sum = rounded(before[i] - 0.5 * rounded(xs[i], sum_type), sum_type);
                        ASSERT_EQ(got[i], rounded(sum, to)) << y << " += " << x;
                    }
                }
}

TEST(Axpy, OfATensorWithItselfDoublesIt) {
    const Tensor x = randn(ctx, {1001}, DType::f32, Seed{1});
    const auto before = to_host(ctx, x);
    axpy(ctx, x, 1.0, x);
    const auto got = to_host(ctx, x);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], 2 * before[i]);
}

TEST(Fill, WritesEveryViewAndNothingElse) {
    for (const DType type : floating_dtypes) {
        const Tensor x = zeros(ctx, {5, 6, 7}, type);
        fill(ctx, x.slice(1, 1, 2).slice(2, 3, 3), 1.5);
        double sum = 0;
        for (const double value : to_host(ctx, x)) sum += value;
        EXPECT_EQ(sum, 1.5 * 5 * 2 * 3) << type;
        EXPECT_THAT(to_host(ctx, x.slice(1, 1, 2).slice(2, 3, 3)), testing::Each(1.5));
    }
}

TEST(Fill, ReachesEveryElementOfALargeTensor) {
    const Tensor x = empty(ctx, {100003}, DType::bf16);
    fill(ctx, x, -2.0);
    EXPECT_THAT(to_host(ctx, x), testing::Each(-2.0));
}

TEST(FromHost, AcceptsFloatsForEveryDtype) {
    const std::vector<float> values{1, -2.5, 1.0f / 3};
    const Tensor x = from_host(ctx, values, {3, 1});
    EXPECT_EQ(x.dtype(), DType::f32);
    EXPECT_THAT(to_host(ctx, x), testing::ElementsAreArray(values));
    for (const DType type : floating_dtypes) {
        const auto got = to_host(ctx, from_host(ctx, values, {3, 1}, type));
        for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], rounded(values[i], type)) << type;
    }
}

TEST(FromHost, CopiesTheValues) {
    std::vector<float> values{1, 2};
    const Tensor x = from_host(ctx, values, {2});
    values[0] = 9;
    EXPECT_THAT(to_host(ctx, x), testing::ElementsAre(1, 2));
}

TEST(FromHost, RefusesAnotherNumberOfValues) {
    EXPECT_THROW(from_host(ctx, std::vector<float>{1, 2}, {3}), Error);
    EXPECT_THROW(from_host(ctx, std::vector<double>{1, 2}, {3}, DType::f32), Error);
    EXPECT_EQ(from_host(ctx, std::vector<float>{}, {0, 3}).shape(), (Shape{0, 3}));
}

TEST(TensorOps, AcceptEmptyTensors) {
    const Tensor x = empty(ctx, {0, 5}, DType::f32);
    fill(ctx, x, 1.0);
    copy(ctx, x, x);
    axpy(ctx, x, 1.0, x);
    EXPECT_TRUE(to_host(ctx, x).empty());
}

TEST(TensorOps, RefuseUndefinedTensorsAndThoseOfAGpuInOneLine) {
    const Tensor undefined, x = zeros(ctx, {}, DType::f32);
    const Tensor on_gpu(nullptr, x.raw_data(), Device::cuda(0), DType::f32, x.shape(), x.strides());
    for (const Tensor& bad : {undefined, on_gpu}) {
        const std::string expected = bad.defined() ? "devices must be equal" : "undefined";
        const auto refused = [&](auto&& operation) {
            EXPECT_THAT(test::message_of(operation), testing::HasSubstr(expected));
        };
        refused([&] { fill(ctx, bad, 1.0); });
        refused([&] { copy(ctx, bad, x); });
        refused([&] { copy(ctx, x, bad); });
        refused([&] { axpy(ctx, bad, 1.0, x); });
        refused([&] { axpy(ctx, x, 1.0, bad); });
        refused([&] { cast(ctx, bad, DType::f64); });
        refused([&] { to_host(ctx, bad); });
        refused([&] { item(ctx, bad); });
    }
}

TEST(TensorOps, ItemReadsOneElement) {
    EXPECT_EQ(item(ctx, from_host(ctx, std::vector<double>{2.5}, {1, 1}, DType::bf16)), 2.5);
    EXPECT_THROW(item(ctx, zeros(ctx, {2}, DType::f32)), Error);
}

}  // namespace
}  // namespace gradtile
