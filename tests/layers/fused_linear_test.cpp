// fused_linear_in_one_kernel() and most_likely_tokens(), against float64.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/fused_linear.h>
#include <gradtile/layers/internal/norm_backend.h>
#include <gradtile/layers/most_likely.h>

#include <support/cuda_test.h>
#include <support/error_message.h>
#include <support/floating_dtypes.h>

namespace gradtile {
namespace {

using test::epsilon_of;
using test::message_of;
using testing::HasSubstr;

struct FusedCase {
    std::int64_t rows, in, out;
    bool norm, centred, bias, residual;
    std::optional<Activation> activation;
    bool wide_result = false;
    double weight_offset = 0.0;
};

/// Some widths of x are multiples of what a warp reads at once, others are not. y's columns do not always
/// divide evenly among the thread blocks.
const FusedCase fused_cases[] = {
    {1, 768, 2304, true, true, true, false, std::nullopt},
    {1, 3072, 768, false, false, true, true, std::nullopt},
    {1, 768, 3072, true, true, true, false, Activation::gelu_tanh},
    {1, 4096, 100, false, false, false, false, std::nullopt},
    {2, 256, 96, true, false, false, false, Activation::swiglu},
    {3, 264, 77, true, false, true, true, std::nullopt},
    {5, 520, 40, true, true, false, true, Activation::relu2},
    {7, 32, 24, true, true, true, false, Activation::gelu},
    {8, 1288, 1000, true, true, true, true, Activation::swiglu},
    {8, 64, 3, false, false, false, false, std::nullopt, true},
    {1, 128, 5003, true, true, false, false, std::nullopt, true},  // two thread blocks per multiprocessor
    {7, 264, 1703, true, true, true, true, Activation::swiglu},    // the same
    {4, 264, 80, true, false, true, true, Activation::geglu_tanh, false, 1.0},
    {9, 64, 32, true, true, true, true, Activation::gelu},  // more rows than the kernel accepts
    {2, 30, 16, true, true, true, true, Activation::gelu},  // x's rows do not divide into vectors
};

/// The operands for one case in one dtype, from the same random numbers for every dtype.
struct Operands {
    Tensor x;
    FusedLinear op;
};
Operands operands_of(const Context& ctx, const FusedCase& c, DType dtype) {
    const std::int64_t weight_rows = c.out * (c.activation && traits_of(*c.activation).gated ? 2 : 1);
    Operands made{randn(ctx, {c.rows, c.in}, dtype, Seed{1}), {}};
    made.op.weight = randn(ctx, {weight_rows, c.in}, dtype, Seed{2});
    if (c.bias) made.op.bias = randn(ctx, {weight_rows}, dtype, Seed{3});
    if (c.norm)
        made.op.norm =
            NormParameters{.weight = randn(ctx, {c.in}, dtype, Seed{4}),
                           .bias = c.centred && c.bias ? randn(ctx, {c.in}, dtype, Seed{5}) : Tensor(),
                           .centred = c.centred,
                           .weight_offset = c.weight_offset};
    made.op.activation = c.activation;
    if (c.residual) made.op.residual = randn(ctx, {c.rows, c.out}, dtype, Seed{6});
    return made;
}

/// The operator in one kernel, or in steps where the device has no such kernel.
void fused_linear(const Context& ctx, const Tensor& y, const Tensor& x, const FusedLinear& op) {
    if (fused_linear_in_one_kernel(ctx, y, x, op)) return;
    const Tensor in = op.norm ? normalized(ctx, x, *op.norm) : x;
    const GemmOptions options{.trans_b = true, .bias = op.bias};
    if (op.activation) {
        const Tensor hidden = empty(ctx, {x.size(0), op.weight.size(0)}, x.dtype());
        gemm(ctx, hidden, in, op.weight, options);
        ActivationLayer{*op.activation}.forward_into(ctx, y, hidden);
    } else {
        gemm(ctx, y, in, op.weight, options);
    }
    if (op.residual.defined()) axpy(ctx, y, 1.0, op.residual);
}

Tensor in_float64(const Context& ctx, const Context& cpu, const Tensor& x) {
    return x.defined() ? from_host(cpu, to_host(ctx, x), x.shape(), DType::f64) : Tensor();
}

/// The formulas in float64. `magnitude` receives sum |norm(x)| |w| for each element, plus the element's
/// addends.
std::vector<double> expected_of(const Context& ctx, const Context& cpu, const Operands& in,
                                std::vector<double>& magnitude) {
    Operands exact{in_float64(ctx, cpu, in.x), in.op};
    for (Tensor* t : {&exact.op.weight, &exact.op.bias, &exact.op.residual}) *t = in_float64(ctx, cpu, *t);
    if (exact.op.norm)
        for (Tensor* t : {&exact.op.norm->weight, &exact.op.norm->bias}) *t = in_float64(ctx, cpu, *t);
    const std::int64_t rows = exact.x.size(0), width = exact.x.size(1);
    const bool gated = in.op.activation && traits_of(*in.op.activation).gated;
    const std::int64_t out = exact.op.weight.size(0) / (gated ? 2 : 1);
    const Tensor y = empty(cpu, {rows, out}, DType::f64);
    fused_linear(cpu, y, exact.x, exact.op);
    // The norm alone, for the magnitudes: a product with the unit matrix.
    Tensor normed = exact.x;
    if (exact.op.norm) {
        const Tensor unit = zeros(cpu, {width, width}, DType::f64);
        for (std::int64_t i = 0; i < width; ++i) unit.data<double>()[i * width + i] = 1;
        normed = empty(cpu, {rows, width}, DType::f64);
        fused_linear(cpu, normed, exact.x, {.norm = exact.op.norm, .weight = unit});
    }
    const auto dot = [&](std::int64_t row, std::int64_t weight_row) {
        double sum = exact.op.bias.defined() ? std::abs(exact.op.bias.data<double>()[weight_row]) : 0;
        for (std::int64_t k = 0; k < width; ++k)
            sum += std::abs(normed.data<double>()[row * width + k] *
                            exact.op.weight.data<double>()[weight_row * width + k]);
        return sum;
    };
    magnitude.clear();
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t column = 0; column < out; ++column) {
            double sum = dot(row, column);
            // |d f| <= |up| |d gate| * 1.13 + |f(gate)| |d up|, both at most the product of the sums. The
            // relu^2 slope is 2 x; the slopes of SiLU and GELU are at most 1.13.
            if (gated) {
                sum *= 2.13 * dot(row, out + column);
            } else if (in.op.activation == Activation::relu2) {
                sum *= 2 * sum;
            } else if (in.op.activation) {
                sum *= 1.13;
            }
            if (exact.op.residual.defined())
                sum += std::abs(exact.op.residual.data<double>()[row * out + column]);
            magnitude.push_back(sum);
        }
    return to_host(cpu, y);
}

/// The bound, relative to the magnitudes, adds: rounding norm(x) to the dtype; the norm's own error, (width /
/// 32 + 40) float32 roundings; (in + 3) float32 roundings in the sum, far more than the kernel needs; the
/// activation's roundings; and up to three roundings of results to the dtype (hidden values, activation, sum
/// with the residual).
void expect_fused_linear(const Context& ctx, const Context& cpu, const FusedCase& c, DType dtype) {
    const Operands in = operands_of(ctx, c, dtype);
    const DType result = c.wide_result ? accumulator_of(dtype) : dtype;
    const Tensor y = empty(ctx, {c.rows, c.out}, result);
    fill(ctx, y, std::numeric_limits<double>::quiet_NaN());
    fused_linear(ctx, y, in.x, in.op);
    std::vector<double> magnitude;
    const std::vector<double> expected = expected_of(ctx, cpu, in, magnitude), values = to_host(ctx, y);
    const double sum = dtype == DType::f64 ? 0x1p-53 : 0x1p-24, storage = epsilon_of(dtype);
    const double roundings = static_cast<double>(c.in) * 1.04 + 100;
    ASSERT_EQ(values.size(), expected.size());
    for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_LE(std::abs(values[i] - expected[i]), (roundings * sum + 4 * storage) * magnitude[i])
            << dtype << ", element " << i << " of [" << c.rows << ", " << c.out << "]: " << values[i]
            << " for " << expected[i];
}

TEST(FusedLinear, RefusesShapesThatDoNotFit) {
    const Context cpu(Device::cpu(), 1);
    const auto f32 = [&](const Shape& shape) { return zeros(cpu, shape, DType::f32); };
    EXPECT_THAT(message_of([&] {
                    fused_linear(cpu, f32({1, 3}), f32({1, 4}), {.weight = f32({3, 5})});
                }),
                HasSubstr("fused_linear: y [1, 3] float32"));
    EXPECT_THAT(message_of([&] {
                    fused_linear(cpu, f32({1, 3}), f32({1, 4}),
                                 {.weight = f32({3, 4}), .activation = Activation::swiglu});
                }),
                HasSubstr("shapes do not fit"));
    EXPECT_THAT(message_of([&] {
                    fused_linear(cpu, f32({1, 3}), f32({1, 4}), {.weight = f32({3, 4}), .bias = f32({4})});
                }),
                HasSubstr("bias [4] float32"));
}

class FusedLinearOnCuda : public test::CudaTest {};

TEST_F(FusedLinearOnCuda, EqualsTheFormula) {
    for (const FusedCase& c : fused_cases)
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
            expect_fused_linear(gpu(), cpu, c, dtype);
            if (HasFailure()) return;
        }
}

/// With many rows in the batch, each row's sums equal those from a batch with this row alone, to the bit.
TEST_F(FusedLinearOnCuda, ARowDoesNotDependOnTheOthers) {
    const FusedCase c{7, 768, 300, true, true, true, true, Activation::gelu_tanh};
    const Operands in = operands_of(gpu(), c, DType::bf16);
    const Tensor all = poisoned({c.rows, c.out}, DType::bf16);
    fused_linear(gpu(), all, in.x, in.op);
    for (std::int64_t row = 0; row < c.rows; ++row) {
        const Tensor one = poisoned({1, c.out}, DType::bf16);
        FusedLinear op = in.op;
        op.residual = in.op.residual.slice(0, row, 1);
        fused_linear(gpu(), one, in.x.slice(0, row, 1), op);
        EXPECT_EQ(to_host(gpu(), one), to_host(gpu(), all.slice(0, row, 1))) << row;
    }
}

// ---- The most likely token ----

void expect_most_likely(const Context& ctx) {
    std::vector<float> logits(3 * 5003, -2.0f);
    logits[17] = logits[4000] = 1.5f;                    // row 0: two equal, the first wins
    logits[5003 + 5002] = -1.0f;                         // row 1: the last, all negative
    std::fill_n(logits.begin() + 2 * 5003, 5003, 0.0f);  // row 2: zeros, some with a negative sign
    logits[2 * 5003] = -0.0f;
    const Tensor x = from_host(ctx, logits, {3, 5003});
    const Tensor tokens = zeros(ctx, {3}, DType::i32);
    most_likely_tokens(ctx, tokens, x);
    EXPECT_EQ(to_host(ctx, tokens), (std::vector<double>{17, 5002, 0}));
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
        logits[5003 + 100] = bad;
        most_likely_tokens(ctx, tokens, from_host(ctx, logits, {3, 5003}));
        EXPECT_EQ(to_host(ctx, tokens), (std::vector<double>{17, -1, 0})) << bad;
    }
    most_likely_tokens(ctx, tokens.slice(0, 1, 1), x.slice(0, 0, 1).slice(1, 18, 2));
    EXPECT_EQ(to_host(ctx, tokens)[1], 0);
}

TEST(MostLikely, TakesTheFirstOfTheLargestLogits) {
    expect_most_likely(Context(Device::cpu(), 2));
}
class MostLikelyOnCuda : public test::CudaTest {};
TEST_F(MostLikelyOnCuda, TakesTheFirstOfTheLargestLogits) {
    expect_most_likely(gpu());
}

}  // namespace
}  // namespace gradtile
