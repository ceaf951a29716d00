#include <gradtile/core/tensor.h>

#include <limits>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>

#include <support/cpu_context.h>
#include <support/error_message.h>

namespace gradtile {
namespace {

using test::ctx;

/// 0, 1, 2, ... in row-major order.
Tensor counting(const Shape& shape, DType type = DType::f64) {
    std::vector<double> values(static_cast<std::size_t>(shape.elements()));
    std::iota(values.begin(), values.end(), 0.0);
    return from_host(ctx, values, shape, type);
}

TEST(Tensor, ViewsShareElements) {
    const Tensor x = counting({2, 3}, DType::f32);
    EXPECT_THAT(to_host(ctx, x.transpose(0, 1)), testing::ElementsAre(0, 3, 1, 4, 2, 5));
    EXPECT_THAT(to_host(ctx, x.slice(1, 1, 2)), testing::ElementsAre(1, 2, 4, 5));
    EXPECT_THAT(to_host(ctx, x.select(0, 1)), testing::ElementsAre(3, 4, 5));
    EXPECT_THAT(to_host(ctx, x.select(0, 1).expand({2, 3})), testing::ElementsAre(3, 4, 5, 3, 4, 5));
    fill(ctx, x.slice(1, 1, 1), 9);
    EXPECT_THAT(to_host(ctx, x), testing::ElementsAre(0, 9, 2, 3, 9, 5));
}

TEST(Tensor, NegativeAxesCountFromTheBackInEveryView) {
    const Tensor x = counting({2, 3, 4});
    EXPECT_EQ(to_host(ctx, x.transpose(-1, -2)), to_host(ctx, x.transpose(1, 2)));
    EXPECT_EQ(to_host(ctx, x.slice(-1, 1, 2)), to_host(ctx, x.slice(2, 1, 2)));
    EXPECT_EQ(to_host(ctx, x.select(-2, 1)), to_host(ctx, x.select(1, 1)));
    EXPECT_EQ(x.select(-2, 1).shape(), (Shape{2, 4}));
}

TEST(Tensor, ReshapeSplitsAndMergesAxesOfAStridedView) {
    const Tensor right = counting({4, 6}).slice(1, 2, 4);
    EXPECT_EQ(to_host(ctx, right.reshape({4, 2, 2})), to_host(ctx, right));
    EXPECT_EQ(to_host(ctx, right.reshape({2, 2, 4})), to_host(ctx, right));
    EXPECT_EQ(to_host(ctx, right.reshape({2, 1, 2, 1, 4})), to_host(ctx, right));
    EXPECT_THROW(right.reshape({16}), Error);
    EXPECT_THROW(right.reshape({8, 2}).reshape({16}), Error);
}

TEST(Tensor, ReshapeInfersOneAxis) {
    const Tensor x = counting({4, 6});
    EXPECT_EQ(x.reshape({-1, 3}).shape(), (Shape{8, 3}));
    EXPECT_EQ(x.reshape({-1}).shape(), Shape{24});
    EXPECT_THROW(x.reshape({-1, -1}), Error);
    EXPECT_THROW(x.reshape({-1, 5}), Error);
    EXPECT_EQ(counting({0, 6}).reshape({-1, 6}).shape(), (Shape{0, 6}));
}

TEST(Tensor, ReshapeOfATransposeNeedsACopyUnlessItOnlySplits) {
    const Tensor t = counting({4, 6}).transpose(0, 1);  // t is a view [6, 4]
    EXPECT_EQ(to_host(ctx, t.reshape({3, 2, 4})), to_host(ctx, t));
    EXPECT_THROW(t.reshape({24}), Error);
}

TEST(Tensor, ExpandRepeatsWithStrideZero) {
    const Tensor x = counting({3, 1});
    const Tensor wide = x.expand({2, 3, 4});
    EXPECT_EQ(wide.strides(), (Strides{0, 1, 0}));
    EXPECT_THAT(to_host(ctx, wide.select(0, 1)), testing::ElementsAre(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2));
    EXPECT_THROW(x.expand({2, 4}), Error);
    EXPECT_THROW(wide.expand({3}), Error);
    EXPECT_THROW(x.expand({3, -4}), Error);
    EXPECT_THROW(x.expand({-1, 3, 1}), Error);
    EXPECT_THROW(x.expand({std::int64_t{1} << 62, 3, 4}), Error);
}

TEST(Tensor, ContiguityIgnoresAxesOfLengthOne) {
    EXPECT_TRUE(counting({4, 6}).slice(0, 1, 2).is_contiguous());
    EXPECT_FALSE(counting({4, 6}).slice(1, 1, 2).is_contiguous());
    EXPECT_TRUE(counting({4, 6}).slice(0, 1, 1).transpose(0, 1).is_contiguous());
    EXPECT_TRUE(counting({4, 0}).transpose(0, 1).is_contiguous());
}

TEST(Tensor, RefusesAxesAndRangesThatDoNotExist) {
    const Tensor x = counting({2, 3});
    EXPECT_THROW(x.slice(1, 2, 2), Error);
    EXPECT_THROW(x.slice(1, -1, 2), Error);
    EXPECT_THROW(x.slice(2, 0, 1), Error);
    EXPECT_THROW(x.select(0, 2), Error);
    EXPECT_THROW(x.transpose(0, 2), Error);
    EXPECT_NO_THROW(x.slice(1, 3, 0));
    constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
    EXPECT_THROW(x.slice(1, 1, largest), Error);
    EXPECT_THROW(x.slice(1, largest, 1), Error);
    EXPECT_THROW(x.select(0, largest), Error);
}

TEST(Tensor, AViewKeepsTheMemoryAlive) {
    const auto arena = std::make_shared<Arena>(Device::cpu(), 1 << 16);
    const Context in_arena = ctx.with_allocator(arena);
    Tensor view = zeros(in_arena, {100}, DType::f32).slice(0, 50, 10);
    EXPECT_GT(arena->bytes_in_use(), 0u);
    view = Tensor();
    EXPECT_EQ(arena->bytes_in_use(), 0u);
}

TEST(Tensor, IsReadAsItsOwnElementTypeOnly) {
    const Tensor x = counting({2}, DType::f32);
    EXPECT_NO_THROW(x.data<float>());
    EXPECT_THROW(x.data<double>(), Error);
}

TEST(Tensor, LargerThanAnyMemoryIsRefused) {
    EXPECT_THROW(empty(ctx, {std::int64_t{1} << 61}, DType::f64), Error);  // 2^64 bytes
    EXPECT_THROW(empty(ctx, {std::int64_t{1} << 60}, DType::f64), Error);  // 2^63
}

TEST(FromBlob, IsAViewOfTheCallersMemory) {
    std::vector<float> values{0, 1, 2, 3, 4, 5};
    {
        const Tensor x = Tensor::from_blob(values.data(), {2, 3}, DType::f32);
        EXPECT_EQ(x.data<float>(), values.data());
        EXPECT_TRUE(x.is_contiguous());
        EXPECT_EQ(x.device(), Device::cpu());
        EXPECT_THAT(to_host(ctx, x.transpose(0, 1)), testing::ElementsAre(0, 3, 1, 4, 2, 5));
        values[4] = 40;
        EXPECT_EQ(item(ctx, x.select(0, 1).slice(0, 1, 1)), 40);
        fill(ctx, x.select(0, 0), 7);
    }
    EXPECT_THAT(values, testing::ElementsAre(7, 7, 7, 3, 40, 5));
}

TEST(FromBlob, RefusesNullAndUnalignedMemory) {
    EXPECT_EQ(test::message_of([] { Tensor::from_blob(nullptr, {2}, DType::f32); }),
              "from_blob: a null pointer for shape [2]");
    EXPECT_TRUE(Tensor::from_blob(nullptr, {2, 0}, DType::f32).defined());
    float one = 1;
    EXPECT_THROW(Tensor::from_blob(&one, {-1}, DType::f32), Error);
    EXPECT_THROW(Tensor::from_blob(&one, {std::int64_t{1} << 40, std::int64_t{1} << 40}, DType::f32), Error);
    double values[2] = {};
    std::byte* const odd = reinterpret_cast<std::byte*>(values) + 2;
    EXPECT_THAT(test::message_of([&] { Tensor::from_blob(odd, {1}, DType::f32); }),
                testing::HasSubstr("is not aligned for float32"));
    EXPECT_NO_THROW(Tensor::from_blob(odd, {1}, DType::bf16));
}

TEST(Tensor, IsUndefinedByDefault) {
    EXPECT_FALSE(Tensor().defined());
    EXPECT_TRUE(counting({0}).defined());
}

}  // namespace
}  // namespace gradtile
