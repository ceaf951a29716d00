#include <gradtile/core/compare.h>

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>

#include <support/cpu_context.h>
#include <support/cuda_test.h>
#include <support/floating_dtypes.h>

namespace gradtile {
namespace {

using test::ctx;

Tensor counting(const Context& ctx, const Shape& shape, DType type) {
    std::vector<double> values(static_cast<std::size_t>(shape.elements()));
    std::iota(values.begin(), values.end(), 0.0);
    return from_host(ctx, values, shape, type);
}

TEST(ToString, WritesAMatrixInAlignedColumns) {
    const Tensor x = from_host(ctx, std::vector<float>{1, 2.5, -3, 4, 1e10f, 1.0f / 3}, {2, 3});
    EXPECT_EQ(to_string(x), R"([2, 3] float32 on cpu
[[      1,     2.5,      -3],
 [      4,   1e+10, 0.33333]])");
}

TEST(ToString, SeparatesTheMatricesOfThreeAxes) {
    EXPECT_EQ(to_string(ctx, counting(ctx, {2, 2, 2}, DType::f64)), R"([2, 2, 2] float64 on cpu
[[[0, 1],
  [2, 3]],

 [[4, 5],
  [6, 7]]])");
}

TEST(ToString, ShowsTheEndsOfLargeTensors) {
    EXPECT_EQ(to_string(counting(ctx, {100, 11}, DType::f32)), R"([100, 11] float32 on cpu
[[   0,    1,    2, ...,    8,    9,   10],
 [  11,   12,   13, ...,   19,   20,   21],
 [  22,   23,   24, ...,   30,   31,   32],
 ...,
 [1067, 1068, 1069, ..., 1075, 1076, 1077],
 [1078, 1079, 1080, ..., 1086, 1087, 1088],
 [1089, 1090, 1091, ..., 1097, 1098, 1099]])");
    EXPECT_EQ(to_string(counting(ctx, {500, 3}, DType::f32).transpose(0, 1)), R"([3, 500] float32 on cpu
[[   0,    3,    6, ..., 1491, 1494, 1497],
 [   1,    4,    7, ..., 1492, 1495, 1498],
 [   2,    5,    8, ..., 1493, 1496, 1499]])");
}

TEST(ToString, WritesUpToAThousandElementsInFull) {
    EXPECT_THAT(to_string(counting(ctx, {1000}, DType::f64)), testing::Not(testing::HasSubstr("...")));
    EXPECT_THAT(to_string(counting(ctx, {1001}, DType::f64)), testing::HasSubstr("2, ...,  998"));
}

TEST(ToString, ReadsEveryDtypeAndView) {
    for (const DType type : test::floating_dtypes) {
        const Tensor x = counting(ctx, {2, 4}, type).slice(1, 1, 2).transpose(0, 1);
        EXPECT_EQ(to_string(x), concat("[2, 2] ", type, " on cpu\n[[1, 5],\n [2, 6]]"));
    }
    const std::vector<std::int32_t> tokens{7, -2147483647};
    EXPECT_EQ(to_string(from_host(ctx, tokens, {2})), "[2] int32 on cpu\n[          7, -2147483647]");
}

TEST(ToString, PrintsScalarsAndEmptyAndUndefinedTensors) {
    EXPECT_EQ(to_string(from_host(ctx, std::vector<float>{2.5}, {})), "[] float32 on cpu\n2.5");
    EXPECT_EQ(to_string(empty(ctx, {0}, DType::f32)), "[0] float32 on cpu\n[]");
    EXPECT_EQ(to_string(empty(ctx, {2, 0}, DType::f32)), "[2, 0] float32 on cpu\n[[],\n []]");
    EXPECT_EQ(to_string(Tensor()), "no tensor");
}

class ToStringCuda : public test::CudaTest {};

TEST_F(ToStringCuda, ReadsTensorsOfTheDeviceAndOfTheHost) {
    for (const Shape& shape : {Shape{2, 3}, Shape{100, 11}}) {
        const Tensor x = counting(gpu(), shape, DType::bf16), same = counting(cpu, shape, DType::bf16);
        const std::string text = to_string(gpu(), x), expected = to_string(cpu, same);
        EXPECT_EQ(text.substr(text.find('\n')), expected.substr(expected.find('\n')));
        EXPECT_EQ(to_string(gpu(), same), expected);
        EXPECT_THROW(to_string(x), Error);
        EXPECT_THROW(to_string(cpu, x), Error);
    }
}

}  // namespace
}  // namespace gradtile
