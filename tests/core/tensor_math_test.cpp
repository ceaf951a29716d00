#include <gradtile/core/tensor_math.h>

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gradcheck.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include <support/cpu_context.h>
#include <support/cuda_test.h>
#include <support/error_message.h>
#include <support/floating_dtypes.h>

namespace gradtile {
namespace {

using test::ctx;
using test::epsilon_of;
using test::floating_dtypes;
using test::rounded;

/// Views with shape [7, 12]: contiguous, transposed, strided rows, strided elements, one row repeated.
std::vector<Tensor> operands(const Context& ctx, DType type, std::uint64_t seed) {
    return {randn(ctx, {7, 12}, type, Seed{seed}), randn(ctx, {12, 7}, type, Seed{seed}).transpose(0, 1),
            randn(ctx, {7, 20}, type, Seed{seed}).slice(1, 3, 12),
            randn(ctx, {7, 12, 3}, type, Seed{seed}).select(2, 1),
            randn(ctx, {1, 12}, type, Seed{seed}).expand({7, 12})};
}

struct Operation {
    Tensor (*on_tensors)(const Context&, const Tensor&, const Tensor&);
    double (*on_numbers)(double, double);
};
const Operation operations[] = {
    {add, [](double a, double b) { return a + b; }},
    {subtract, [](double a, double b) { return a - b; }},
    {multiply, [](double a, double b) { return a * b; }},
    {divide, [](double a, double b) { return a / b; }},
};

/// The expected values are computed in float64 and rounded to the accumulator's type. This gives the same
/// bits as the operation in the accumulator's type, because float64 has more than twice float32's digits.
TEST(Arithmetic, IsExactUpToTheRoundingsOfItsDtypes) {
    for (const DType type : floating_dtypes)
        for (const Tensor& a : operands(ctx, type, 1))
            for (const Tensor& b : operands(ctx, type, 2))
                for (const Operation& operation : operations) {
                    const Tensor y = operation.on_tensors(ctx, a, b);
                    ASSERT_EQ(y.dtype(), type);
                    const auto as = to_host(ctx, a), bs = to_host(ctx, b), ys = to_host(ctx, y);
                    for (std::size_t i = 0; i < ys.size(); ++i) {
                        const double exact = operation.on_numbers(as[i], bs[i]);
                        ASSERT_EQ(ys[i], rounded(rounded(exact, accumulator_of(type)), type)) << type;
                    }
                }
}

TEST(Arithmetic, BroadcastsAxesOfLengthOneAndMissingOnes) {
    const Tensor rows = from_host(ctx, std::vector<float>{10, 20}, {2, 1});
    const Tensor columns = from_host(ctx, std::vector<float>{1, 2, 3}, {3});
    const Tensor y = add(ctx, rows, columns);
    EXPECT_EQ(y.shape(), (Shape{2, 3}));
    EXPECT_THAT(to_host(ctx, y), testing::ElementsAre(11, 12, 13, 21, 22, 23));
    const Tensor scalar = from_host(ctx, std::vector<float>{5}, {});
    EXPECT_THAT(to_host(ctx, subtract(ctx, scalar, columns)), testing::ElementsAre(4, 3, 2));
    EXPECT_EQ(multiply(ctx, zeros(ctx, {0, 1}, DType::f32), columns).shape(), (Shape{0, 3}));
}

TEST(Arithmetic, NamesTheOperatorAndBothOperandsInItsErrors) {
    const Tensor x = zeros(ctx, {2, 3}, DType::f32);
    EXPECT_EQ(test::message_of([&] {
                  add(ctx, x, zeros(ctx, {2, 2}, DType::f32));
              }),
              "add: [2, 3] float32 on cpu and [2, 2] float32 on cpu do not broadcast");
    EXPECT_EQ(test::message_of([&] { divide(ctx, x, zeros(ctx, {3}, DType::bf16)); }),
              "divide: [2, 3] float32 on cpu and [3] bfloat16 on cpu; cast() one to the other's dtype");
    EXPECT_EQ(test::message_of([&] { exp(ctx, zeros(ctx, {3}, DType::i32)); }),
              "exp: [3] int32 on cpu; expected a floating-point tensor");
    EXPECT_EQ(test::message_of([&] { log(ctx, Tensor()); }),
              "log: no tensor; expected a floating-point tensor");
}

TEST(Scale, RoundsTheProductOnce) {
    for (const DType type : floating_dtypes)
        for (const Tensor& x : operands(ctx, type, 1)) {
            const auto xs = to_host(ctx, x), ys = to_host(ctx, scale(ctx, x, -1.5));
            for (std::size_t i = 0; i < ys.size(); ++i)
                ASSERT_EQ(ys[i], rounded(rounded(-1.5 * xs[i], accumulator_of(type)), type));
        }
}

/// The bounds: vector_math.h states errors of 1.1 and 0.9 float32 units in the last place; libm's float64
/// functions have less than 1. Storing rounds once more.
double function_bound(double exact, DType type) {
    return 1.1 * epsilon_of(accumulator_of(type)) * std::abs(exact) +
           (is_16_bit(type) ? 0.5 * epsilon_of(type) * std::abs(exact) + 0x1p-25 : 0.0);
}

TEST(ExpAndLog, AreAccurateToTheirLastPlaces) {
    for (const DType type : floating_dtypes)
        for (const Tensor& x : operands(ctx, type, 1)) {
            const Tensor y = exp(ctx, x), z = log(ctx, y);
            const auto xs = to_host(ctx, x), ys = to_host(ctx, y), zs = to_host(ctx, z);
            for (std::size_t i = 0; i < xs.size(); ++i) {
                ASSERT_NEAR(ys[i], std::exp(xs[i]), function_bound(std::exp(xs[i]), type)) << type;
                ASSERT_NEAR(zs[i], std::log(ys[i]), function_bound(std::log(ys[i]), type)) << type;
            }
        }
}

/// Integers below 2^8, which are exact in every dtype. Their sums are exact in float32, so the addition order
/// does not matter.
Tensor small_integers(const Context& ctx, const Shape& shape, DType type) {
    std::vector<double> values(static_cast<std::size_t>(shape.elements()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * 37 % 101) - 50;
    return from_host(ctx, values, shape, type);
}

TEST(Sum, AlongEveryAxisKeepsTheAxis) {
    for (const DType type : floating_dtypes) {
        const Tensor x = small_integers(ctx, {3, 41, 5}, type);
        for (int axis = -3; axis < 3; ++axis) {
            const Tensor total = sum(ctx, x, axis);
            Shape expected_shape = x.shape();
            expected_shape[axis] = 1;
            ASSERT_EQ(total.shape(), expected_shape);
            ASSERT_TRUE(total.is_contiguous());
            ASSERT_EQ(total.dtype(), accumulator_of(type));
            const Tensor expected = zeros(ctx, expected_shape, DType::f64);
            for (std::int64_t i = 0; i < x.size(axis); ++i) axpy(ctx, expected, 1.0, x.slice(axis, i, 1));
            EXPECT_EQ(to_host(ctx, total), to_host(ctx, expected)) << type << ", axis " << axis;
        }
    }
}

TEST(Sum, OfAllElementsCountsEachOnce) {
    for (const std::int64_t n : {0, 1, 31, 16384, 16385, 3 * 16384, 100003}) {
        const Tensor x = small_integers(ctx, {n}, DType::bf16);
        double expected = 0;
        for (const double value : to_host(ctx, x)) expected += value;
        const Tensor total = sum(ctx, x);
        EXPECT_EQ(total.shape(), Shape{});
        EXPECT_EQ(item(ctx, total), expected) << n << " elements";
    }
    const Tensor wide = small_integers(ctx, {200, 300}, DType::f32);
    EXPECT_EQ(item(ctx, sum(ctx, wide.transpose(0, 1))), item(ctx, sum(ctx, wide)));
}

TEST(Sum, IsTheSameForEveryNumberOfThreads) {
    const Tensor x = randn(ctx, {333, 1000}, DType::f32, Seed{1});
    const Context one(Device::cpu(), 1);
    EXPECT_EQ(to_host(one, sum(one, x)), to_host(ctx, sum(ctx, x)));
    EXPECT_EQ(to_host(one, sum(one, x, 0)), to_host(ctx, sum(ctx, x, 0)));
}

TEST(Mean, DividesByTheNumberOfElements) {
    const Tensor x = from_host(ctx, std::vector<float>{1, 2, 3, 6}, {2, 2});
    EXPECT_EQ(item(ctx, mean(ctx, x)), 3);
    EXPECT_THAT(to_host(ctx, mean(ctx, x, 0)), testing::ElementsAre(2, 4));
    EXPECT_THAT(to_host(ctx, mean(ctx, x, -1)), testing::ElementsAre(1.5, 4.5));
    EXPECT_THROW(mean(ctx, zeros(ctx, {0, 2}, DType::f32)), Error);
    EXPECT_THROW(mean(ctx, zeros(ctx, {0, 2}, DType::f32), 0), Error);
}

TEST(Max, FindsTheLargestAndKeepsNaN) {
    for (const DType type : floating_dtypes) {
        const Tensor x = small_integers(ctx, {5, 101}, type);
        EXPECT_THAT(to_host(ctx, max(ctx, x, 1)), testing::Each(50));
        EXPECT_EQ(max(ctx, x, 1).dtype(), type);
        EXPECT_EQ(item(ctx, max(ctx, x)), 50);
        for (const std::int64_t place : {0, 40, 100}) {
            const Tensor y = cast(ctx, x, type);
            fill(ctx, y.select(0, 2).slice(0, place, 1), std::nan(""));
            const auto largest = to_host(ctx, max(ctx, y, 1));
            for (std::size_t r = 0; r < 5; ++r) EXPECT_EQ(std::isnan(largest[r]), r == 2) << place;
        }
    }
    const Tensor nothing = zeros(ctx, {3, 2}, DType::f32);
    fill(ctx, nothing, -std::numeric_limits<double>::infinity());
    EXPECT_THAT(to_host(ctx, max(ctx, nothing, 1)), testing::Each(-std::numeric_limits<double>::infinity()));
    EXPECT_THROW(max(ctx, zeros(ctx, {2, 0}, DType::f32), 1), Error);
}

TEST(TensorMath, AccessesNoElementsInADryRun) {
    const Context plan = ctx.plan(Arena::for_planning(Device::cpu()));
    const Tensor x = empty(plan, {40, 1000}, DType::bf16);
    EXPECT_EQ(mean(plan, multiply(plan, exp(plan, x), x)).shape(), Shape{});
}

/// A loss and its gradient, written with functions from tensor_math.h only, as a user would.
Differentiable mean_squared_error() {
    return {[](const Context& c, const std::vector<Tensor>& in) {
                const Tensor error = subtract(c, in[0], in[1]);
                return std::vector<Tensor>{mean(c, multiply(c, error, error))};
            },
            [](const Context& c, const std::vector<Tensor>& in, const std::vector<Tensor>& grads) {
                const Tensor error = subtract(c, in[0], in[1]);
                const Tensor slope = scale(c, error, 2.0 / static_cast<double>(error.elements()));
                const Tensor d_prediction = multiply(c, slope, grads[0]);
                return std::vector<Tensor>{d_prediction, scale(c, d_prediction, -1.0)};
            }};
}

Tensor log_sum_exp(const Context& c, const Tensor& logits) {
    const Tensor largest = max(c, logits, -1);
    return add(c, log(c, sum(c, exp(c, subtract(c, logits, largest)), -1)), largest);
}

/// The loss is the mean over rows of logsumexp(logits)^2.
Differentiable z_loss() {
    return {[](const Context& c, const std::vector<Tensor>& in) {
                const Tensor z = log_sum_exp(c, in[0]);
                return std::vector<Tensor>{mean(c, multiply(c, z, z))};
            },
            [](const Context& c, const std::vector<Tensor>& in, const std::vector<Tensor>& grads) {
                const Tensor z = log_sum_exp(c, in[0]);
                const Tensor softmax = exp(c, subtract(c, in[0], z));
                const Tensor dz = scale(c, multiply(c, z, grads[0]), 2.0 / static_cast<double>(z.elements()));
                return std::vector<Tensor>{multiply(c, dz, softmax)};
            }};
}

TEST(TensorMath, WritesMeanSquaredErrorAndItsGradient) {
    const Tensor prediction = randn(ctx, {5, 7}, DType::f64, Seed{1}),
                 target = randn(ctx, {5, 7}, DType::f64, Seed{2});
    const auto report = gradient_check(ctx, mean_squared_error(), {prediction, target});
    EXPECT_TRUE(report.ok()) << report;
}

TEST(TensorMath, WritesZLossAndItsGradient) {
    const auto report = gradient_check(ctx, z_loss(), {randn(ctx, {3, 4, 11}, DType::f64, Seed{1})});
    EXPECT_TRUE(report.ok()) << report;
}

class TensorMathCuda : public test::CudaTest {};

/// Both devices round correctly: once in the accumulator's type, and once to the dtype. So the bits are
/// equal.
TEST_F(TensorMathCuda, ArithmeticHasTheBitsOfTheCpu) {
    for (const DType type : floating_dtypes) {
        const auto as = operands(gpu(), type, 1), bs = operands(gpu(), type, 2);
        const auto as_cpu = operands(cpu, type, 1), bs_cpu = operands(cpu, type, 2);
        for (std::size_t i = 0; i < as.size(); ++i)
            for (std::size_t j = 0; j < bs.size(); ++j)
                for (const Operation& operation : operations)
                    EXPECT_EQ(to_host(gpu(), operation.on_tensors(gpu(), as[i], bs[j])),
                              to_host(cpu, operation.on_tensors(cpu, as_cpu[i], bs_cpu[j])))
                        << type;
        EXPECT_EQ(to_host(gpu(), scale(gpu(), as[0], -1.5)), to_host(cpu, scale(cpu, as_cpu[0], -1.5)));
    }
}

/// CUDA's expf and logf have errors of at most 2 units in the last place.
TEST_F(TensorMathCuda, FunctionsAreAccurateToTheirLastPlaces) {
    for (const DType type : floating_dtypes)
        for (const Tensor& x : operands(gpu(), type, 1)) {
            const Tensor y = exp(gpu(), x), z = log(gpu(), y);
            const auto xs = to_host(gpu(), x), ys = to_host(gpu(), y), zs = to_host(gpu(), z);
            for (std::size_t i = 0; i < xs.size(); ++i) {
                ASSERT_NEAR(ys[i], std::exp(xs[i]), 2 * function_bound(std::exp(xs[i]), type)) << type;
                ASSERT_NEAR(zs[i], std::log(ys[i]), 2 * function_bound(std::log(ys[i]), type)) << type;
            }
        }
}

TEST_F(TensorMathCuda, ReductionsAgreeWithTheCpu) {
    for (const DType type : floating_dtypes)
        for (const Shape& shape : {Shape{3, 41, 5}, Shape{1, 40000, 1}, Shape{9000, 2, 3}, Shape{0, 3, 2}}) {
            const Tensor x = small_integers(gpu(), shape, type), x_cpu = small_integers(cpu, shape, type);
            EXPECT_EQ(item(gpu(), sum(gpu(), x)), item(cpu, sum(cpu, x_cpu)));
            for (const int axis : {1, 2}) {
                EXPECT_EQ(to_host(gpu(), sum(gpu(), x, axis)), to_host(cpu, sum(cpu, x_cpu, axis)));
                EXPECT_EQ(to_host(gpu(), max(gpu(), x, axis)), to_host(cpu, max(cpu, x_cpu, axis)));
            }
        }
}

TEST_F(TensorMathCuda, MaxKeepsNaN) {
    for (const std::int64_t place : {0, 300, 999}) {
        const Tensor x = small_integers(gpu(), {3, 1000}, DType::f32);
        fill(gpu(), x.select(0, 1).slice(0, place, 1), std::nan(""));
        const auto largest = to_host(gpu(), max(gpu(), x, 1));
        for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(std::isnan(largest[r]), r == 1) << place;
    }
}

TEST_F(TensorMathCuda, RefusesTensorsOfTheHost) {
    EXPECT_THROW(exp(gpu(), zeros(cpu, {3}, DType::f32)), Error);
}

}  // namespace
}  // namespace gradtile
