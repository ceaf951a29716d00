// gradtile's own products for Hopper: every kernel, against float64 on the CPU.
#include <algorithm>
#include <cmath>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/gemm_algorithms.h>
#include <gradtile/core/gemm/internal/gemm_candidates.h>
#include <gradtile/core/gemm/internal/hopper_product.h>
#include <gradtile/core/gemm/internal/hopper_tiles.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include <support/floating_dtypes.h>
#include <support/hopper_product_test.h>

namespace gradtile {
namespace {

using cuda::ProductOperands;
using test::epsilon_of;

class HopperProduct : public test::HopperProductTest {
  protected:
    /// A random matrix whose rows begin at multiples of 8 elements, as TMA requires.
    Tensor matrix(std::int64_t rows, std::int64_t columns, DType type, std::uint64_t seed) const {
        return randn(gpu(), {rows, rounded_up(columns, 8)}, type, Seed{seed}).slice(1, 0, columns);
    }

    /// Computes a b, or a b^T, with every kernel, or with the kernel `only`. The bound: k products summed in
    /// any order have an error of at most k eps / 2 times the sum of their magnitudes (Higham, Accuracy and
    /// Stability, 3.1). The bound has eps instead of eps / 2, because tensor cores do not round to nearest,
    /// and k + 1 additions because the bias is added, too. One rounding to the result's type is added;
    /// subnormal f16 numbers have a spacing of 2^-24.
    void check_kernels(std::int64_t m, std::int64_t n, std::int64_t k, DType type, bool trans_b,
                       bool has_bias, std::optional<std::uint64_t> only = {}) {
        ProductOperands operands{.a = matrix(m, k, type, 1),
                                 .b = {trans_b ? matrix(n, k, type, 2) : matrix(k, n, type, 2)},
                                 .trans_b = trans_b};
        const Tensor memory = empty(gpu(), {m, rounded_up(n, 8) + 8}, type);
        operands.to[0] = memory.slice(1, 0, n);
        if (has_bias) operands.bias = randn(gpu(), {n}, type, Seed{3});
        if (const char* reason = cuda::why_not_hopper_product(operands)) GTEST_SKIP() << reason;
        const auto kernels = cuda::hopper_product_kernels(operands);
        ASSERT_FALSE(kernels.empty());
        ASSERT_TRUE(!only || std::ranges::find(kernels, *only) != kernels.end());
        const auto expected = product(operands, false), sizes = product(operands, true);
        const auto bias = has_bias ? to_host(gpu(), operands.bias) : std::vector<double>(n, 0.0);
        const double half = epsilon_of(type) / 2;
        const std::int64_t row = memory.size(1);
        for (const std::uint64_t kernel : kernels) {
            if (only && kernel != *only) continue;
            fill(gpu(), memory, std::nan(""));
            cuda::run_hopper_product(gpu(), operands, kernel);
            const auto got = to_host(gpu(), memory);
            for (std::int64_t i = 0; i < m; ++i)
                for (std::int64_t j = 0; j < row; ++j) {
                    const double x = got[i * row + j];
                    if (j >= n) {
                        ASSERT_TRUE(std::isnan(x)) << "written beyond a row at [" << i << ", " << j << ']';
                        continue;
                    }
                    const double want = expected[i * n + j] + bias[j],
                                 size = sizes[i * n + j] + std::abs(bias[j]);
                    const double bound =
                        static_cast<double>(k + 3) * 0x1p-23 * size + half * std::abs(want) + 0x1p-24;
                    ASSERT_LE(std::abs(x - want), bound)
                        << "at [" << i << ", " << j << "], kernel " << std::hex << kernel << std::dec << ", "
                        << m << " x " << n << " x " << k << ' ' << type << (trans_b ? " b^T" : "")
                        << (has_bias ? " + bias" : "");
                }
        }
    }
};

/// Each tile kind has its own test, because after a fault on the GPU the process can compute nothing more.
class HopperProductTiles : public HopperProduct, public testing::WithParamInterface<cuda::ProductTiles> {};

TEST_P(HopperProductTiles, OneTile) {
    check_kernels(64, 64, 64, DType::bf16, true, false, GetParam().number());
    check_kernels(128, 256, 1000, DType::bf16, true, false, GetParam().number());
    check_kernels(128, 256, 1000, DType::f16, false, false, GetParam().number());
}

/// More tiles than thread blocks, so that each thread block takes several.
TEST_P(HopperProductTiles, ManyTiles) {
    check_kernels(3001, 3080, 200, DType::bf16, true, true, GetParam().number());
    check_kernels(3001, 3080, 304, DType::f16, false, false, GetParam().number());
}

INSTANTIATE_TEST_SUITE_P(Kernels, HopperProductTiles, testing::ValuesIn(cuda::product_tiles),
                         [](const auto& info) {
                             const cuda::ProductTiles& tiles = info.param;
                             return concat(tiles.rows(), 'x', tiles.columns, tiles.in_turns ? "InTurns" : "",
                                           "Cluster", tiles.cluster);
                         });

TEST_F(HopperProduct, TilesThatAreCutOff) {
    struct Shape {
        std::int64_t m, n, k;
    };
    for (const DType type : {DType::bf16, DType::f16})
        for (const auto& [m, n, k] :
             {Shape{1, 8, 8}, {7, 136, 72}, {200, 264, 72}, {333, 776, 136}, {300, 520, 328}})
            for (const bool trans_b : {false, true}) check_kernels(m, n, k, type, trans_b, false);
}

TEST_F(HopperProduct, AddsABias) {
    for (const DType type : {DType::bf16, DType::f16}) {
        check_kernels(200, 264, 72, type, true, true);
        check_kernels(333, 776, 136, type, true, true);
    }
}

/// There are no kernels for weight-gradient products, nor for a b with a bias (only for a b^T with a bias).
TEST_F(HopperProduct, LeavesOtherProductsToTheLibrary) {
    ProductOperands operands{.a = matrix(64, 64, DType::bf16, 1),
                             .b = {matrix(64, 64, DType::bf16, 2)},
                             .to = {matrix(64, 64, DType::bf16, 3)}};
    if (const char* reason = cuda::why_not_hopper_product(operands)) GTEST_SKIP() << reason;
    EXPECT_FALSE(cuda::hopper_product_kernels(operands).empty());
    operands.trans_a = true;
    EXPECT_TRUE(cuda::hopper_product_kernels(operands).empty());
    operands.trans_a = false;
    operands.bias = randn(gpu(), {64}, DType::bf16, Seed{4});
    EXPECT_TRUE(cuda::hopper_product_kernels(operands).empty());
    operands.trans_b = true;
    EXPECT_FALSE(cuda::hopper_product_kernels(operands).empty());
}

TEST_F(HopperProduct, RefusesWhatTmaCannotAddress) {
    ProductOperands operands{.a = matrix(64, 64, DType::bf16, 1), .b = {matrix(64, 64, DType::bf16, 2)}};
    operands.to[0] = matrix(64, 64, DType::bf16, 3);
    if (const char* reason = cuda::why_not_hopper_product(operands)) GTEST_SKIP() << reason;
    operands.a = randn(gpu(), {64, 65}, DType::bf16, Seed{1}).slice(1, 0, 64);
    EXPECT_NE(cuda::why_not_hopper_product(operands), nullptr);
    EXPECT_TRUE(cuda::hopper_product_kernels(operands).empty());
    // A TMA store would write up to the next multiple of 8 elements.
    operands.a = matrix(64, 64, DType::bf16, 1);
    operands.b[0] = matrix(60, 64, DType::bf16, 2);
    operands.trans_b = true;
    operands.to[0] = matrix(64, 64, DType::bf16, 3).slice(1, 0, 60);
    EXPECT_NE(cuda::why_not_hopper_product(operands), nullptr);
}

/// A kernel that one context chose gives the same bits in a deterministic context that restores the choice.
TEST_F(HopperProduct, ChosenKernelsCanBeCarriedToAnotherContext) {
    const Tensor a = matrix(512, 256, DType::bf16, 1), b = matrix(384, 256, DType::bf16, 2);
    const auto product_of = [&](const Context& on) {
        const Tensor c = empty(on, {512, 384}, DType::bf16);
        gemm(on, c, a, b, {.trans_b = true});
        return to_host(on, c);
    };
    const ProductOperands operands{
        .a = a, .b = {b}, .trans_b = true, .to = {empty(gpu(), {512, 384}, DType::bf16)}};
    if (const char* reason = cuda::why_not_hopper_product(operands)) GTEST_SKIP() << reason;
    const std::uint64_t kernel = cuda::hopper_product_kernels(operands).front();
    const Context forced(Device::cuda(0), 1);
    cuda::restrict_gemm(forced, kernel);
    const auto expected = product_of(forced);
    const auto chosen = gemm_algorithms(forced);
    ASSERT_EQ(chosen.size(), 1u);
    EXPECT_EQ(cuda::own_gemm_kernel(chosen[0]), kernel);

    const Context other = Context(Device::cuda(0), 1).with_deterministic(true);
    EXPECT_EQ(restore_gemm_algorithms(other, chosen), 1u);
    EXPECT_EQ(product_of(other), expected);
    EXPECT_EQ(gemm_algorithms(other), chosen);

    auto unknown = chosen;
    unknown[0].algorithm[1] = 12345;
    const Context another(Device::cuda(0), 1);
    restore_gemm_algorithms(another, unknown);
    product_of(another);
    EXPECT_NE(gemm_algorithms(another), unknown);
    EXPECT_EQ(refused_gemm_algorithms(another), 1u);
}

}  // namespace
}  // namespace gradtile
