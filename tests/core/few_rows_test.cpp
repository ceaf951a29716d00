// The kernels for products with few rows, each on this machine, through gemm().
#include <gradtile/core/gemm/internal/few_rows.h>

#include <cmath>

#include <gtest/gtest.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include <support/floating_dtypes.h>

namespace gradtile {
namespace {

using cpu::ForcedFewRowsKernels;
using cpu::usable_few_rows_kernels;
using test::epsilon_of;

struct Types {
    DType in, out;
};
constexpr Types all_types[] = {{DType::f32, DType::f32},
                               {DType::bf16, DType::bf16},
                               {DType::bf16, DType::f32},
                               {DType::f16, DType::f16},
                               {DType::f16, DType::f32}};

/// Normally distributed numbers [rows, columns], with `padding` unused elements after each row.
Tensor matrix(const Context& ctx, std::int64_t rows, std::int64_t columns, DType type, std::uint64_t seed,
              std::int64_t padding = 0) {
    return randn(ctx, {rows, columns + padding}, type, Seed{seed}).slice(1, 0, columns);
}

class FewRows : public testing::Test {
  protected:
    void SetUp() override {
        if (usable_few_rows_kernels().empty()) GTEST_SKIP() << "this processor has neither AVX2 nor NEON";
    }
    Context ctx{Device::cpu(), 2};

    /// c = alpha a w^T (+ c) (+ bias) against float64, for w [n, k] stored by rows. The bound is the same as
    /// in gemm_test.cpp: k + 3 roundings relative to the sum of magnitudes, and one for the result.
    void expect_product(const Types& types, std::int64_t m, std::int64_t n, std::int64_t k,
                        std::int64_t padding, GemmOptions options = {}) {
        const auto [in, out] = types;
        const Tensor a = matrix(ctx, m, k, in, 1, padding), w = matrix(ctx, n, k, in, 2, padding);
        const Tensor c = matrix(ctx, m, n, out, 3, padding);
        const auto before = to_host(ctx, c), as = to_host(ctx, a), ws = to_host(ctx, w);
        const auto bias = options.bias.defined() ? to_host(ctx, options.bias) : std::vector<double>();
        options.trans_b = true;
        gemm(ctx, c, a, w, options);
        const auto got = to_host(ctx, c);
        const auto index = [](std::int64_t i) { return static_cast<std::size_t>(i); };
        for (std::int64_t i = 0; i < m; ++i)
            for (std::int64_t j = 0; j < n; ++j) {
                double sum = 0, size = 0;
                for (std::int64_t p = 0; p < k; ++p) {
                    const double product = as[index(i * k + p)] * ws[index(j * k + p)];
                    sum += options.alpha * product;
                    size += std::abs(options.alpha * product);
                }
                if (options.accumulate)
                    sum += before[index(i * n + j)], size += std::abs(before[index(i * n + j)]);
                if (!bias.empty()) sum += bias[index(j)], size += std::abs(bias[index(j)]);
                const double bound = (static_cast<double>(k) + 3) * epsilon_of(accumulator_of(in)) * size +
                                     epsilon_of(out) / 2 * std::abs(sum) + 0x1p-24;
                ASSERT_LE(std::abs(got[index(i * n + j)] - sum), bound)
                    << "[" << i << ", " << j << "] of " << m << " x " << n << " x " << k << ", " << in
                    << " to " << out;
            }
    }
};

/// A product that the kernels accept in every dtype if m is small enough.
cpu::GemmBlock product_of(std::int64_t m) {
    return {.m = m,
            .n = 5,
            .k = 7,
            .lda = 7,
            .ldb = 7,
            .ldc = 5,
            .trans_a = false,
            .trans_b = true,
            .accumulate = false,
            .alpha = 1.0f};
}

TEST_F(FewRows, TheKernelsTakeOneToEightRowsOfTransposedWeightsOnly) {
    for (const cpu::FewRowsKernels* kernels : usable_few_rows_kernels()) {
        const ForcedFewRowsKernels forced(kernels);
        for (const std::int64_t m : {1, 4})
            EXPECT_EQ(cpu::few_rows_product<float>(product_of(m)), kernels->f32);
        for (const std::int64_t m : {1, 8}) {
            EXPECT_EQ(cpu::few_rows_product<bfloat16>(product_of(m)), kernels->bf16);
            EXPECT_EQ(cpu::few_rows_product<float16>(product_of(m)), kernels->f16);
        }
        EXPECT_EQ(cpu::few_rows_product<float>(product_of(9)), nullptr);
        EXPECT_EQ(cpu::few_rows_product<bfloat16>(product_of(9)), nullptr);
        EXPECT_EQ(cpu::few_rows_product<double>(product_of(1)), nullptr);
        cpu::GemmBlock other = product_of(1);
        other.trans_b = false;
        EXPECT_EQ(cpu::few_rows_product<float>(other), nullptr);
        other = product_of(1);
        other.trans_a = true;
        EXPECT_EQ(cpu::few_rows_product<float>(other), nullptr);
    }
    const ForcedFewRowsKernels library(nullptr);
    EXPECT_EQ(cpu::few_rows_product<float>(product_of(1)), nullptr);
}

TEST_F(FewRows, OddShapesAndStrides) {
    for (const cpu::FewRowsKernels* kernels : usable_few_rows_kernels()) {
        SCOPED_TRACE(kernels->name);
        const ForcedFewRowsKernels forced(kernels);
        for (const Types& types : all_types)
            for (std::int64_t m = 1; m <= 8; ++m)
                for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                           {3, 31},
                                           {17, 32},
                                           {5, 63},
                                           {33, 64},
                                           {65, 129},
                                           {200, 383}})
                    for (const std::int64_t padding : {0, 3}) expect_product(types, m, n, k, padding);
    }
}

TEST_F(FewRows, AccumulatesScalesAndAddsBias) {
    for (const cpu::FewRowsKernels* kernels : usable_few_rows_kernels()) {
        SCOPED_TRACE(kernels->name);
        const ForcedFewRowsKernels forced(kernels);
        for (const Types& types : all_types)
            for (const std::int64_t m : {1, 3, 8}) {
                const Tensor bias = randn(ctx, {150}, types.in, Seed{4});
                const Tensor wide_bias = randn(ctx, {150}, accumulator_of(types.in), Seed{5});
                expect_product(types, m, 150, 60, 1, {.accumulate = true});
                expect_product(types, m, 150, 60, 1, {.alpha = -0.375});
                expect_product(types, m, 150, 60, 0, {.bias = bias});
                expect_product(types, m, 150, 60, 0, {.accumulate = true, .alpha = 1.7, .bias = wide_bias});
            }
    }
}

TEST_F(FewRows, BitsDependNeitherOnTheNumberOfThreadsNorOnTheOtherRows) {
    for (const cpu::FewRowsKernels* kernels : usable_few_rows_kernels()) {
        SCOPED_TRACE(kernels->name);
        const ForcedFewRowsKernels forced(kernels);
        for (const auto& [in, out] : all_types) {
            // n is large enough for several blocks, and k is no multiple of the vector length.
            const std::int64_t n = 403, k = 333, rows = in == DType::f32 ? kernels->max_rows_f32 : 8;
            const Tensor a = matrix(ctx, rows, k, in, 1), w = matrix(ctx, n, k, in, 2);
            std::vector<double> expected;
            for (const int threads : {1, 2, 3, 5}) {
                const Context some(Device::cpu(), threads);
                for (std::int64_t m = 1; m <= rows; ++m) {
                    const Tensor c = empty(some, {m, n}, out);
                    gemm(some, c, a.slice(0, rows - m, m), w, {.trans_b = true});
                    const auto last_row = to_host(some, c.slice(0, m - 1, 1));
                    if (expected.empty()) expected = last_row;
                    ASSERT_EQ(last_row, expected) << threads << " threads, " << m << " rows, " << in;
                }
            }
        }
    }
}

TEST_F(FewRows, NonFiniteElementsReachTheResultsThatTheyBelongTo) {
    for (const cpu::FewRowsKernels* kernels : usable_few_rows_kernels()) {
        SCOPED_TRACE(kernels->name);
        const ForcedFewRowsKernels forced(kernels);
        for (const auto& [in, out] : all_types) {
            const Tensor a = zeros(ctx, {2, 70}, in), w = zeros(ctx, {3, 70}, in),
                         c = empty(ctx, {2, 3}, out);
            fill(ctx, c, std::nan(""));
            fill(ctx, w.slice(0, 1, 1).slice(1, 69, 1), std::nan(""));
            gemm(ctx, c, a, w, {.trans_b = true});
            const auto got = to_host(ctx, c);
            for (const std::size_t i : {0, 2, 3, 5}) EXPECT_EQ(got[i], 0) << in;
            EXPECT_TRUE(std::isnan(got[1]) && std::isnan(got[4])) << in;
        }
    }
}

}  // namespace
}  // namespace gradtile
