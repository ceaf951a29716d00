#include <gradtile/core/tensor.h>

#include <sstream>

#include <gtest/gtest.h>

namespace gradtile {
namespace {

TEST(Shape, CountsItsElements) {
    EXPECT_EQ((Shape{2, 3, 4}).elements(), 24);
    EXPECT_EQ(Shape{}.elements(), 1);
    EXPECT_EQ((Shape{5, 0, 7}).elements(), 0);
}

TEST(Shape, RefusesMoreElementsThan63BitsHoldAndNegativeAxes) {
    constexpr std::int64_t big = std::int64_t{1} << 32;
    EXPECT_THROW((Shape{big, big}).elements(), Error);
    EXPECT_THROW((Shape{3, -1}).elements(), Error);
}

TEST(Shape, NegativeAxesCountFromTheBack) {
    const Shape shape{2, 3, 4};
    EXPECT_EQ(shape[-1], 4);
    EXPECT_EQ(shape[-3], 2);
    EXPECT_THROW(shape[3], Error);
    EXPECT_THROW(shape[-4], Error);
}

TEST(Shape, HoldsAtMostSixAxes) {
    EXPECT_EQ((Shape{1, 2, 3, 4, 5, 6}).rank(), 6);
    EXPECT_THROW((Shape{1, 2, 3, 4, 5, 6, 7}), Error);
}

TEST(Shape, EqualityComparesRankAndAxes) {
    EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
    EXPECT_NE((Shape{2, 3}), (Shape{2, 3, 1}));
    EXPECT_NE((Shape{2}), (Shape{2, 0}));
}

TEST(Shape, RowMajorStrides) {
    EXPECT_EQ(contiguous_strides({2, 3, 4}), (Strides{12, 4, 1}));
    EXPECT_EQ(contiguous_strides({}), Strides{});
}

TEST(Shape, PrintsItsAxes) {
    std::ostringstream out;
    out << Shape{2, 113, 4, 64} << Shape{};
    EXPECT_EQ(out.str(), "[2, 113, 4, 64][]");
}

}  // namespace
}  // namespace gradtile
