#include <gradtile/core/compare.h>

#include <cmath>
#include <limits>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>

#include <support/cpu_context.h>

namespace gradtile {
namespace {

using test::ctx;

Tensor matrix(std::vector<double> values, DType type = DType::f64) {
    return from_host(ctx, values, {2, 3}, type);
}

TEST(Compare, EqualTensorsDifferNowhere) {
    const Comparison same = compare(matrix({1, 2, 3, 4, 5, -6}), matrix({1, 2, 3, 4, 5, -6}, DType::f32));
    EXPECT_EQ(same.different, 0);
    EXPECT_EQ(same.absolute.error, 0);
    EXPECT_EQ(same.relative.error, 0);
    EXPECT_EQ(same.norm_error, 0);
    EXPECT_EQ(same.largest, 6);
    EXPECT_EQ(same.elements, 6);
}

TEST(Compare, FindsTheLargestErrorsAndTheirPlaces) {
    const Comparison found = compare(matrix({1, 2.5, 3, 4, 5, 100}), matrix({1, 2, 3, 4, 5, 99}));
    EXPECT_EQ(found.different, 2);
    EXPECT_EQ(found.absolute.error, 1);
    EXPECT_EQ(found.absolute.index, (Shape{1, 2}));
    EXPECT_EQ(found.absolute.value, 100);
    EXPECT_EQ(found.absolute.reference, 99);
    EXPECT_EQ(found.relative.error, 0.25);
    EXPECT_EQ(found.relative.index, (Shape{0, 1}));
    EXPECT_DOUBLE_EQ(found.norm_error, std::sqrt(1.25 / (1 + 4 + 9 + 16 + 25 + 99.0 * 99)));
}

TEST(Compare, ANanOnOneSideIsAnInfiniteErrorAndOnBothIsEqual) {
    const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
    EXPECT_EQ(compare(matrix({nan, inf, -inf, 0, 0, 0}), matrix({nan, inf, -inf, 0, 0, 0})).different, 0);
    const Comparison lost = compare(matrix({1, 1, 1, nan, 1, 1}), matrix({1, 1, 1, 1, 1, 1}));
    EXPECT_EQ(lost.absolute.error, inf);
    EXPECT_EQ(lost.absolute.index, (Shape{1, 0}));
    EXPECT_EQ(compare(matrix({1, 1, 1, 1, 1, 1}), matrix({1, 1, 1, 1, nan, 1})).absolute.error, inf);
    EXPECT_EQ(compare(matrix({1, 1, inf, 1, 1, 1}), matrix({1, 1, -inf, 1, 1, 1})).absolute.error, inf);
}

TEST(Compare, ReadsStridedViews) {
    const Tensor x = matrix({1, 2, 3, 4, 5, 6});
    const Tensor t = from_host(ctx, std::vector<double>{1, 4, 2, 5, 3, 7}, {3, 2}, DType::f64);
    EXPECT_EQ(compare(x.transpose(0, 1), t).absolute.index, (Shape{2, 1}));
}

TEST(Compare, PrintsOneLine) {
    std::ostringstream out;
    out << compare(matrix({1, 2, 3, 4, 5, 7}), matrix({1, 2, 3, 4, 5, 6}));
    EXPECT_THAT(out.str(), testing::HasSubstr("absolute 1 at [1, 2] (7 for 6)"));
    EXPECT_EQ(out.str().find('\n'), out.str().size() - 1);
}

TEST(Compare, RefusesUnequalShapes) {
    EXPECT_THROW(compare(matrix({1, 2, 3, 4, 5, 6}), matrix({1, 2, 3, 4, 5, 6}).transpose(0, 1)), Error);
}

}  // namespace
}  // namespace gradtile
