#include <gradtile/layers/linear_activation.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/activation.h>

namespace gradtile {
namespace {

constexpr DType all_dtypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
constexpr Activation some_activations[] = {Activation::gelu_tanh, Activation::gelu, Activation::swiglu};

/// How many input columns the activation has for each output column.
std::int64_t halves_of(Activation activation) {
    return traits_of(activation).gated ? 2 : 1;
}

/// Shapes with one element, with sizes that are not multiples of the vector length, and with several blocks.
struct Sizes {
    std::int64_t rows, in, out;
};
constexpr Sizes all_sizes[] = {{1, 1, 1}, {7, 5, 13}, {1100, 70, 530}};

/// A matrix filled with NaN, so that elements that an operator does not write are detected. There are
/// `padding` elements between rows.
Tensor unwritten(const Context& ctx, std::int64_t rows, std::int64_t columns, DType dtype,
                 std::int64_t padding = 0) {
    const Tensor x = empty(ctx, {rows, columns + padding}, dtype);
    fill(ctx, x, std::nan(""));
    return x.slice(1, 0, columns);
}

Tensor random_matrix(const Context& ctx, std::int64_t rows, std::int64_t columns, DType dtype,
                     std::uint64_t seed, std::int64_t padding = 0) {
    const Tensor x = unwritten(ctx, rows, columns, dtype, padding);
    copy(ctx, x, randn(ctx, {rows, columns}, dtype, Seed{seed}));
    return x;
}

TEST(LinearActivation, ForwardIsBitIdenticalToLinearThenActivation) {
    const Context ctx(Device::cpu(), 2);
    for (const DType dtype : all_dtypes)
        for (const Activation activation : some_activations)
            for (const Sizes& size : all_sizes)
                for (const bool has_bias : {false, true}) {
                    const Tensor x = random_matrix(ctx, size.rows, size.in, dtype, 1, 3);
                    const std::int64_t out = halves_of(activation) * size.out;
                    const Tensor weight = random_matrix(ctx, out, size.in, dtype, 2);
                    const Tensor bias = has_bias ? randn(ctx, {out}, dtype, Seed{3}) : Tensor();
                    const Tensor hidden = unwritten(ctx, size.rows, out, dtype, 5);
                    const Tensor y = unwritten(ctx, size.rows, size.out, dtype, 2);
                    linear_activation_forward(ctx, y, hidden, x, weight, bias, activation);

                    const Tensor plain_hidden = unwritten(ctx, size.rows, out, dtype, 5);
                    const Tensor plain_y = unwritten(ctx, size.rows, size.out, dtype);
                    gemm(ctx, plain_hidden, x, weight, {.trans_b = true, .bias = bias});
                    ActivationLayer{activation}.forward_into(ctx, plain_y, plain_hidden);
                    ASSERT_EQ(to_host(ctx, hidden), to_host(ctx, plain_hidden)) << hidden;
                    ASSERT_EQ(to_host(ctx, y), to_host(ctx, plain_y)) << y;
                }
}

TEST(LinearActivation, BackwardIsBitIdenticalToLinearThenActivation) {
    const Context ctx(Device::cpu(), 2);
    for (const DType dtype : all_dtypes)
        for (const Activation activation : some_activations)
            for (const Sizes& size : all_sizes) {
                const Tensor dy = random_matrix(ctx, size.rows, size.in, dtype, 1, 3);
                const Tensor weight = random_matrix(ctx, size.in, size.out, dtype, 2);
                const std::int64_t before = halves_of(activation) * size.out;
                const Tensor hidden = random_matrix(ctx, size.rows, before, dtype, 3, 5);
                const Tensor d_hidden = unwritten(ctx, size.rows, before, dtype, 2);
                linear_activation_backward(ctx, d_hidden, dy, weight, hidden, activation);

                const Tensor plain = unwritten(ctx, size.rows, size.out, dtype, 2);
                gemm(ctx, plain, dy, weight);
                const Tensor plain_d_hidden = unwritten(ctx, size.rows, before, dtype, 2);
                ActivationLayer{activation}.backward_into(ctx, plain_d_hidden, plain, hidden);
                ASSERT_EQ(to_host(ctx, d_hidden), to_host(ctx, plain_d_hidden)) << d_hidden;
            }
}

/// The attached column sums have the same bits as column sums that are computed later.
TEST(LinearActivation, BackwardComputesTheColumnSumsOfItsResult) {
    const Context ctx(Device::cpu(), 2);
    for (const DType dtype : all_dtypes)
        for (const Sizes& size : all_sizes) {
            const Tensor dy = random_matrix(ctx, size.rows, size.in, dtype, 1, 3);
            const Tensor weight = random_matrix(ctx, size.in, size.out, dtype, 2);
            const Tensor hidden = random_matrix(ctx, size.rows, size.out, dtype, 3, 5);
            SummedGradient d_hidden = unwritten(ctx, size.rows, size.out, dtype, 2);
            d_hidden.column_sums = empty_column_sums(ctx, d_hidden.dy);
            linear_activation_backward(ctx, d_hidden, dy, weight, hidden, Activation::gelu_tanh);
            const Tensor total = zeros(ctx, {size.out}, accumulator_of(dtype)),
                         later = zeros(ctx, {size.out}, accumulator_of(dtype));
            add_column_sums(ctx, {total}, d_hidden);
            add_column_sums(ctx, {later}, d_hidden.dy);
            ASSERT_EQ(to_host(ctx, total), to_host(ctx, later)) << d_hidden.dy;
        }
}

TEST(LinearActivation, ResultsDoNotDependOnTheNumberOfThreads) {
    for (const DType dtype : all_dtypes) {
        const auto run = [&](int threads) {
            const Context ctx(Device::cpu(), threads);
            const Tensor x = random_matrix(ctx, 1100, 70, dtype, 1);
            const Tensor weight = random_matrix(ctx, 530, 70, dtype, 2);
            const Tensor y = unwritten(ctx, 1100, 530, dtype), hidden = unwritten(ctx, 1100, 530, dtype);
            const Tensor d_x = unwritten(ctx, 1100, 70, dtype);
            linear_activation_forward(ctx, y, hidden, x, weight, {}, Activation::gelu);
            linear_activation_backward(ctx, d_x, y, weight, x, Activation::gelu);
            return std::pair{to_host(ctx, y), to_host(ctx, d_x)};
        };
        const auto alone = run(1);
        for (const double value : alone.first) ASSERT_TRUE(std::isfinite(value));
        EXPECT_EQ(alone, run(2)) << dtype;
        EXPECT_EQ(alone, run(3)) << dtype;
    }
}

TEST(LinearActivation, AcceptsLeadingAxesAndEmptyOperands) {
    const Context ctx(Device::cpu(), 2);
    const Tensor weight = random_matrix(ctx, 6, 4, DType::f32, 2);
    const Tensor x = random_matrix(ctx, 10, 4, DType::f32, 1);
    const Tensor y = unwritten(ctx, 10, 6, DType::f32), hidden = unwritten(ctx, 10, 6, DType::f32);
    linear_activation_forward(ctx, y, hidden, x, weight, {}, Activation::gelu_tanh);
    const Tensor batched = unwritten(ctx, 10, 6, DType::f32);
    linear_activation_forward(ctx, batched.reshape({2, 5, 6}), hidden.reshape({2, 5, 6}),
                              x.reshape({2, 5, 4}), weight, {}, Activation::gelu_tanh);
    EXPECT_EQ(to_host(ctx, batched), to_host(ctx, y));

    const Tensor none = empty(ctx, {0, 6}, DType::f32), no_x = empty(ctx, {0, 4}, DType::f32);
    EXPECT_NO_THROW(linear_activation_forward(ctx, none, none, no_x, weight, {}, Activation::gelu_tanh));
    EXPECT_NO_THROW(linear_activation_backward(ctx, no_x, none, weight, no_x, Activation::gelu_tanh));
}

TEST(LinearActivation, RefusesOperandsThatDoNotFit) {
    const Context ctx(Device::cpu(), 1);
    const auto matrix = [&](std::int64_t rows, std::int64_t columns, DType dtype = DType::f32) {
        return random_matrix(ctx, rows, columns, dtype, 1);
    };
    const Tensor x = matrix(3, 4), weight = matrix(6, 4), wide = matrix(3, 6);
    const auto forward = [&](const Tensor& y, const Tensor& hidden, const Tensor& bias) {
        linear_activation_forward(ctx, y, hidden, x, weight, bias, Activation::gelu_tanh);
    };
    EXPECT_THROW(forward(matrix(3, 5), wide, {}), Error);
    EXPECT_THROW(forward(matrix(3, 5), matrix(3, 5), {}), Error);
    EXPECT_THROW(forward(matrix(2, 6), matrix(2, 6), {}), Error);
    EXPECT_THROW(forward(matrix(3, 6, DType::bf16), wide, {}), Error);
    EXPECT_THROW(forward(matrix(6, 3).transpose(0, 1), wide, {}), Error);
    EXPECT_THROW(forward(matrix(3, 6), wide, empty(ctx, {5}, DType::f32)), Error);
    EXPECT_THROW(
        linear_activation_backward(ctx, matrix(3, 5), wide, weight, matrix(3, 5), Activation::gelu_tanh),
        Error);
    EXPECT_THROW(
        linear_activation_backward(ctx, x, wide, weight, matrix(3, 4, DType::bf16), Activation::gelu_tanh),
        Error);
}

}  // namespace
}  // namespace gradtile
