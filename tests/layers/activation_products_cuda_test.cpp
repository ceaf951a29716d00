// Products with GELU and SwiGLU by gradtile's own kernels for Hopper: every kernel.
#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/activation.h>
#include <gradtile/layers/column_sums.h>
#include <gradtile/layers/internal/activation_products.h>

#include <support/floating_dtypes.h>
#include <support/hopper_product_test.h>

namespace gradtile {
namespace {

using cuda::ActivationProduct;
using cuda::ProductOperands;
using test::epsilon_of;

struct ProductSizes {
    std::int64_t rows, out, in;
};
/// One tile, tiles that are cut off, and more tiles than a GPU has thread blocks: with a long reduction,
/// whose products take longer than the epilogue, and with a short one.
constexpr ProductSizes product_sizes[] = {{1, 8, 8},       {64, 64, 64},      {200, 264, 72},
                                          {333, 776, 136}, {1500, 3080, 904}, {3001, 3080, 200}};

/// A large product is slow, so it is computed only in bfloat16 and with the first option.
bool is_slow_repetition(std::int64_t rows, DType type, bool first) {
    return rows > 1000 && !(type == DType::bf16 && first);
}

using ActivationProducts = test::HopperProductTest;

/// hidden: the bound for a product with one rounding. y: the bits that a separate pass over hidden computes.
TEST_F(ActivationProducts, GeluEqualsASeparatePassOverHidden) {
    for (const DType type : {DType::bf16, DType::f16})
        for (const auto& [rows, out, in] : product_sizes)
            for (const bool has_bias : {true, false}) {
                if (is_slow_repetition(rows, type, has_bias)) continue;
                ProductOperands operands{.a = randn(gpu(), {rows, in}, type, Seed{1}),
                                         .b = {randn(gpu(), {out, in}, type, Seed{2})},
                                         .trans_b = true};
                const Tensor hidden = poisoned({rows, out}, type), y = poisoned({rows, out}, type);
                operands.to[0] = hidden;
                operands.to[1] = y;
                if (has_bias) operands.bias = randn(gpu(), {out}, type, Seed{3});
                if (const char* reason = cuda::why_not_hopper_product(operands)) GTEST_SKIP() << reason;
                const auto kernels = cuda::product_kernels(ActivationProduct::gelu, operands);
                ASSERT_FALSE(kernels.empty());
                const auto expected = product(operands, false), sizes = product(operands, true);
                const auto bias = has_bias ? to_host(gpu(), operands.bias) : std::vector<double>(out, 0.0);
                for (const std::uint64_t kernel : kernels) {
                    fill(gpu(), hidden, std::nan(""));
                    fill(gpu(), y, std::nan(""));
                    cuda::run_product(gpu(), ActivationProduct::gelu, operands, kernel);
                    const auto got = to_host(gpu(), hidden);
                    for (std::size_t i = 0; i < got.size(); ++i) {
                        const double b = bias[i % static_cast<std::size_t>(out)], want = expected[i] + b;
                        const double bound =
                            static_cast<double>(in + 3) * 0x1p-23 * (sizes[i] + std::abs(b)) +
                            epsilon_of(type) / 2 * std::abs(want) + 0x1p-24;
                        ASSERT_LE(std::abs(got[i] - want), bound)
                            << type << " element " << i << " of " << rows << " x " << out << " x " << in
                            << ", kernel " << std::hex << kernel;
                    }
                    const Tensor separate = poisoned({rows, out}, type);
                    ActivationLayer{Activation::gelu_tanh}.forward_into(gpu(), separate, hidden);
                    ASSERT_EQ(to_host(gpu(), y), to_host(gpu(), separate))
                        << type << " kernel " << std::hex << kernel;
                }
            }
}

/// The derivative of tanh-form GELU.
double gelu_slope(double x) {
    const double root = std::sqrt(2 / std::numbers::pi), t = std::tanh(root * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

/// d_hidden: the product's bound times the slope, at most 1.13; the slope's own error; one rounding. The
/// slope is s + z s (1 - s) w with s = sigmoid(u), w = du/dz. One unit is 2^-23. e^-u has a relative error of
/// |u| + 6 units (fast_math.cuh, and the roundings of u), which changes the slope by s (1 - s) (|u| +
/// 6) (1 + |1 - 2 s| |z| w) units. The other roundings change the slope by s + 6 |z| w s (1 - s) units: at
/// most 5 units in all. Column sums: float32 sums over 128 stored numbers.
TEST_F(ActivationProducts, GeluGradientAndItsColumnSums) {
    for (const DType type : {DType::bf16, DType::f16})
        for (const auto& [rows, out, in] : product_sizes)
            for (const bool with_sums : {true, false}) {
                if (is_slow_repetition(rows, type, with_sums)) continue;
                ProductOperands operands{.a = randn(gpu(), {rows, in}, type, Seed{1}),
                                         .b = {randn(gpu(), {in, out}, type, Seed{2})}};
                const Tensor d_hidden = poisoned({rows, out}, type);
                operands.to[0] = d_hidden;
                operands.with[0] = randn(gpu(), {rows, out}, type, Seed{3});
                if (with_sums) operands.column_sums = empty_column_sums(gpu(), d_hidden);
                if (const char* reason = cuda::why_not_hopper_product(operands)) GTEST_SKIP() << reason;
                const auto kernels = cuda::product_kernels(ActivationProduct::gelu_gradient, operands);
                ASSERT_FALSE(kernels.empty());
                const auto expected = product(operands, false), sizes = product(operands, true);
                const auto hidden = to_host(gpu(), operands.with[0]);
                for (const std::uint64_t kernel : kernels) {
                    fill(gpu(), d_hidden, std::nan(""));
                    if (with_sums) fill(gpu(), operands.column_sums, std::nan(""));
                    cuda::run_product(gpu(), ActivationProduct::gelu_gradient, operands, kernel);
                    const auto got = to_host(gpu(), d_hidden);
                    for (std::size_t i = 0; i < got.size(); ++i) {
                        const double slope = gelu_slope(hidden[i]), want = expected[i] * slope;
                        const double bound = 1.13 * static_cast<double>(in + 3) * 0x1p-23 * sizes[i] +
                                             5 * 0x1p-23 * std::abs(expected[i]) +
                                             epsilon_of(type) / 2 * std::abs(want) + 0x1p-24;
                        ASSERT_LE(std::abs(got[i] - want), bound)
                            << type << " element " << i << " of " << rows << " x " << out << " x " << in
                            << ", kernel " << std::hex << kernel;
                    }
                    if (!with_sums) continue;
                    const auto parts = to_host(gpu(), operands.column_sums);
                    for (std::int64_t part = 0; part < operands.column_sums.size(0); ++part)
                        for (std::int64_t column = 0; column < out; ++column) {
                            double sum = 0, size = 0;
                            for (std::int64_t r = part * 128; r < std::min(rows, part * 128 + 128); ++r) {
                                sum += got[r * out + column];
                                size += std::abs(got[r * out + column]);
                            }
                            ASSERT_LE(std::abs(parts[part * out + column] - sum), 128 * 0x1p-24 * size)
                                << type << " part " << part << " column " << column << ", kernel " << std::hex
                                << kernel;
                        }
                }
            }
}

/// gate and up: the bound for a product with one rounding. y: the bits that a separate pass over them
/// computes.
TEST_F(ActivationProducts, SwiGluEqualsASeparatePassOverGateAndUp) {
    for (const DType type : {DType::bf16, DType::f16})
        for (const auto& [rows, out, in] : product_sizes) {
            if (is_slow_repetition(rows, type, true)) continue;
            const Tensor weight = randn(gpu(), {2 * out, in}, type, Seed{2});
            const Tensor hidden = poisoned({rows, 2 * out}, type), y = poisoned({rows, out}, type);
            ProductOperands operands{.a = randn(gpu(), {rows, in}, type, Seed{1}),
                                     .b = {weight.slice(0, 0, out), weight.slice(0, out, out)},
                                     .trans_b = true,
                                     .to = {hidden.slice(1, 0, out), hidden.slice(1, out, out), y}};
            if (const char* reason = cuda::why_not_hopper_product(operands)) GTEST_SKIP() << reason;
            const auto kernels = cuda::product_kernels(ActivationProduct::swiglu, operands);
            ASSERT_FALSE(kernels.empty());
            const ProductOperands both{.a = operands.a, .b = {weight}, .trans_b = true, .to = {hidden}};
            const auto expected = product(both, false), sizes = product(both, true);
            for (const std::uint64_t kernel : kernels) {
                fill(gpu(), hidden, std::nan(""));
                fill(gpu(), y, std::nan(""));
                cuda::run_product(gpu(), ActivationProduct::swiglu, operands, kernel);
                const auto got = to_host(gpu(), hidden);
                for (std::size_t i = 0; i < got.size(); ++i) {
                    const double bound = static_cast<double>(in + 3) * 0x1p-23 * sizes[i] +
                                         epsilon_of(type) / 2 * std::abs(expected[i]) + 0x1p-24;
                    ASSERT_LE(std::abs(got[i] - expected[i]), bound)
                        << type << " element " << i << " of " << rows << " x 2 * " << out << " x " << in
                        << ", kernel " << std::hex << kernel;
                }
                const Tensor separate = poisoned({rows, out}, type);
                ActivationLayer{Activation::swiglu}.forward_into(gpu(), separate, hidden);
                ASSERT_EQ(to_host(gpu(), y), to_host(gpu(), separate))
                    << type << " kernel " << std::hex << kernel;
            }
        }
}

/// With s = sigmoid(gate), d_gate = dy up s (1 + gate (1 - s)) and d_up = dy gate s. One unit is 2^-23. The
/// error in s is at most 1.8 units: the relative error in e^-gate, |gate| + 4 units, times s (1 - s), and a
/// rounding. The factor that multiplies dy up then has an error of 1.8 |1 + gate (1 - 2 s)| units and four
/// roundings, each at most 1.1 units.
TEST_F(ActivationProducts, SwiGluGradient) {
    for (const DType type : {DType::bf16, DType::f16})
        for (const auto& [rows, out, in] : product_sizes) {
            if (is_slow_repetition(rows, type, true)) continue;
            const Tensor hidden = randn(gpu(), {rows, 2 * out}, type, Seed{3});
            const Tensor d_hidden = poisoned({rows, 2 * out}, type);
            ProductOperands operands{.a = randn(gpu(), {rows, in}, type, Seed{1}),
                                     .b = {randn(gpu(), {in, out}, type, Seed{2})},
                                     .to = {d_hidden.slice(1, 0, out), d_hidden.slice(1, out, out)},
                                     .with = {hidden.slice(1, 0, out), hidden.slice(1, out, out)}};
            if (const char* reason = cuda::why_not_hopper_product(operands)) GTEST_SKIP() << reason;
            const auto kernels = cuda::product_kernels(ActivationProduct::swiglu_gradient, operands);
            ASSERT_FALSE(kernels.empty());
            const auto expected = product(operands, false), sizes = product(operands, true);
            const auto hiddens = to_host(gpu(), hidden);
            for (const std::uint64_t kernel : kernels) {
                fill(gpu(), d_hidden, std::nan(""));
                cuda::run_product(gpu(), ActivationProduct::swiglu_gradient, operands, kernel);
                const auto got = to_host(gpu(), d_hidden);
                for (std::int64_t r = 0; r < rows; ++r)
                    for (std::int64_t o = 0; o < out; ++o) {
                        const std::int64_t at_gate = r * 2 * out + o, at_up = at_gate + out;
                        const double dy = expected[r * out + o], size = sizes[r * out + o];
                        const double gate = hiddens[at_gate], up = hiddens[at_up];
                        const double s = 1 / (1 + std::exp(-gate));
                        const auto check = [&](double x, double factor, double slope, double units) {
                            const double want = dy * factor * slope;
                            const double bound =
                                static_cast<double>(in + 3) * 0x1p-23 * size * std::abs(factor * slope) +
                                units * 0x1p-23 * std::abs(dy * factor) +
                                epsilon_of(type) / 2 * std::abs(want) + 0x1p-24;
                            ASSERT_LE(std::abs(x - want), bound)
                                << type << " at [" << r << ", " << o << "] of " << rows << " x " << out
                                << " x " << in << ", kernel " << std::hex << kernel;
                        };
                        check(got[at_gate], up, s * (1 + gate * (1 - s)), 7 + 2 * std::abs(gate));
                        check(got[at_up], gate, s, 2);
                        if (HasFatalFailure()) return;
                    }
            }
        }
}

/// A NaN in hidden is a NaN at the same place in d_hidden, and only in this column's sum. If the sum were a
/// product with zeros for the other columns, their sums would be NaN, too.
TEST_F(ActivationProducts, NanChangesTheSumOfItsColumnOnly) {
    constexpr std::int64_t rows = 200, out = 264, in = 72, row = 133, column = 21;
    for (const DType type : {DType::bf16, DType::f16}) {
        ProductOperands operands{.a = randn(gpu(), {rows, in}, type, Seed{1}),
                                 .b = {randn(gpu(), {in, out}, type, Seed{2})},
                                 .to = {poisoned({rows, out}, type)},
                                 .with = {randn(gpu(), {rows, out}, type, Seed{3})}};
        operands.column_sums = empty_column_sums(gpu(), operands.to[0]);
        if (const char* reason = cuda::why_not_hopper_product(operands)) GTEST_SKIP() << reason;
        fill(gpu(), operands.with[0].slice(0, row, 1).slice(1, column, 1), std::nan(""));
        for (const std::uint64_t kernel : cuda::product_kernels(ActivationProduct::gelu_gradient, operands)) {
            fill(gpu(), operands.column_sums, 0.0);
            cuda::run_product(gpu(), ActivationProduct::gelu_gradient, operands, kernel);
            const auto d_hidden = to_host(gpu(), operands.to[0]), sums = to_host(gpu(), operands.column_sums);
            for (std::int64_t i = 0; i < rows * out; ++i)
                ASSERT_EQ(std::isnan(d_hidden[i]), i == row * out + column)
                    << type << " element " << i << ", kernel " << std::hex << kernel;
            for (std::int64_t i = 0; i < operands.column_sums.elements(); ++i)
                ASSERT_EQ(std::isnan(sums[i]), i == row / 128 * out + column)
                    << type << " sum " << i << ", kernel " << std::hex << kernel;
        }
    }
}

/// Products with this reduction length.
class ActivationProductsRepeated : public ActivationProducts,
                                   public testing::WithParamInterface<std::int64_t> {
  protected:
    static constexpr std::int64_t rows = 3001, out = 3080;

    /// Operands whose result has more tiles than a GPU has thread blocks: gate and up, or the gate alone.
    ProductOperands operands(bool gated) const {
        const Tensor hidden = randn(gpu(), {rows, 2 * out}, DType::bf16, Seed{3});
        const Tensor d_hidden = poisoned({rows, 2 * out}, DType::bf16);
        ProductOperands all{.a = randn(gpu(), {rows, GetParam()}, DType::bf16, Seed{1}),
                            .b = {randn(gpu(), {GetParam(), out}, DType::bf16, Seed{2})},
                            .to = {d_hidden.slice(1, 0, out)},
                            .with = {hidden.slice(1, 0, out)}};
        if (gated) {
            all.to[1] = d_hidden.slice(1, out, out);
            all.with[1] = hidden.slice(1, out, out);
        }
        return all;
    }
    /// Checks that all runs write the same bits to `results`.
    void check_runs(const std::vector<Tensor>& results, std::uint64_t kernel,
                    const std::function<void()>& run) const {
        std::vector<std::vector<double>> first;
        for (int repetition = 0; repetition < 8; ++repetition) {
            for (const Tensor& result : results) fill(gpu(), result, std::nan(""));
            run();
            for (std::size_t i = 0; i < results.size(); ++i) {
                const auto got = to_host(gpu(), results[i]);
                if (repetition == 0) first.push_back(got);
                ASSERT_EQ(std::memcmp(got.data(), first[i].data(), got.size() * sizeof(double)), 0)
                    << "result " << i << " of repetition " << repetition << ", kernel " << std::hex << kernel;
            }
        }
    }
};

/// The consumers share buffers, and a tile's inputs are loaded during the previous tile's epilogue. A race
/// would give different bits in some runs.
TEST_P(ActivationProductsRepeated, SwiGluGradientsHaveTheSameBits) {
    const ProductOperands gated = operands(true);
    if (const char* reason = cuda::why_not_hopper_product(gated)) GTEST_SKIP() << reason;
    for (const std::uint64_t kernel : cuda::product_kernels(ActivationProduct::swiglu_gradient, gated))
        check_runs({gated.to[0], gated.to[1]}, kernel,
                   [&] { cuda::run_product(gpu(), ActivationProduct::swiglu_gradient, gated, kernel); });
}

TEST_P(ActivationProductsRepeated, GeluGradientsAndColumnSumsHaveTheSameBits) {
    ProductOperands plain = operands(false);
    if (const char* reason = cuda::why_not_hopper_product(plain)) GTEST_SKIP() << reason;
    plain.column_sums = empty_column_sums(gpu(), plain.to[0]);
    for (const std::uint64_t kernel : cuda::product_kernels(ActivationProduct::gelu_gradient, plain))
        check_runs({plain.to[0], plain.column_sums}, kernel,
                   [&] { cuda::run_product(gpu(), ActivationProduct::gelu_gradient, plain, kernel); });
}

INSTANTIATE_TEST_SUITE_P(Reductions, ActivationProductsRepeated, testing::Values(64, 200, 904));

}  // namespace
}  // namespace gradtile
