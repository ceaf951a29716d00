// One kernel multiplies a matrix by its transpose; compared with float64 on the CPU.
#include <cmath>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/internal/hopper_product.h>
#include <gradtile/core/gemm/symmetric_product.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include <support/cuda_test.h>
#include <support/floating_dtypes.h>

namespace gradtile {
namespace {

using Kind = SymmetricProduct::Kind;
constexpr MatrixPolynomial quintic{.a = 3.4445, .b = -4.7750, .c = 2.0315};

struct Sizes {
    std::int64_t count, n, k;
};

class SymmetricProductOnCuda : public test::CudaTest {
  protected:
    /// Returns why the GPU lacks these kernels, or null if it has them. The reason is the same as for other
    /// products.
    const char* why_not() const {
        const Tensor x = zeros(gpu(), {64, 64}, DType::bf16);
        return cuda::why_not_hopper_product({.a = x, .b = {x}, .trans_b = true, .to = {x}});
    }

    /// A random stack whose rows have space after them, and with Kind::polynomial symmetric matrices.
    Tensor operand(const Sizes& sizes, Kind kind) const {
        const auto& [count, n, k] = sizes;
        const std::int64_t rows = kind == Kind::gram_of_columns ? k : n,
                           columns = kind == Kind::gram_of_rows ? k : n;
        const Tensor on_host = randn(cpu, {count, rows, columns}, DType::bf16, Seed{1});
        if (kind == Kind::polynomial) {
            const Tensor sum = cast(cpu, on_host, DType::f32);
            axpy(cpu, sum, 1.0, cast(cpu, on_host.transpose(1, 2), DType::f32));
            copy(cpu, on_host, cast(cpu, sum, DType::bf16));
        }
        const Tensor x = poisoned({count, rows, columns + 8}, DType::bf16).slice(2, 0, columns);
        copy(gpu(), x, to_device(gpu(), on_host));
        return x;
    }

    /// The expected results, and the sums of their terms' magnitudes, in float64.
    struct Expected {
        std::vector<double> values, sizes;
    };
    Expected expected(const Tensor& x, const Tensor& c, Kind kind) const {
        std::vector<double> elements = to_host(gpu(), x);
        const auto product = [&] {
            const Tensor exact = from_host(cpu, elements, x.shape(), DType::f64);
            const Tensor result = empty(cpu, c.shape(), DType::f64);
            gemm(cpu, result, exact, exact,
                 {.trans_a = kind == Kind::gram_of_columns, .trans_b = kind != Kind::gram_of_columns});
            return to_host(cpu, result);
        };
        const std::vector<double> signed_elements = elements;
        Expected all{product(), {}};
        for (double& element : elements) element = std::abs(element);
        all.sizes = product();
        if (kind != Kind::polynomial) return all;
        const std::int64_t n = c.size(1);
        for (std::size_t i = 0; i < all.values.size(); ++i) {
            const auto index = static_cast<std::int64_t>(i) % (n * n);
            const double identity = index / n == index % n ? quintic.a : 0.0;
            all.values[i] = identity + quintic.b * signed_elements[i] + quintic.c * all.values[i];
            all.sizes[i] = identity + std::abs(quintic.b * signed_elements[i]) + quintic.c * all.sizes[i];
        }
        return all;
    }

    /// The bound is the same as in hopper_product_test.cpp: k eps32 times the sum of the magnitudes, and one
    /// rounding for the result. The polynomial has three more roundings and its rounded coefficients.
    void check_product(const Sizes& sizes, Kind kind) {
        const auto& [count, n, k] = sizes;
        const std::int64_t depth = kind == Kind::polynomial ? n : k;
        const Tensor x = operand(sizes, kind);
        const Tensor memory = poisoned({count, n, n + 8}, DType::bf16), c = memory.slice(2, 0, n);
        ASSERT_TRUE(symmetric_product(gpu(), c, x, {.kind = kind, .polynomial = quintic}));
        const std::vector<double> got = to_host(gpu(), c), all = to_host(gpu(), memory);
        const auto [want, size] = expected(x, c, kind);
        const double half = test::epsilon_of(DType::bf16) / 2;
        const auto elements = static_cast<std::size_t>(n);
        for (std::size_t i = 0; i < got.size(); ++i) {
            const std::size_t matrix = i / (elements * elements), row = i / elements % elements,
                              column = i % elements;
            ASSERT_LE(std::abs(got[i] - want[i]),
                      static_cast<double>(depth + 6) * 0x1p-23 * size[i] + half * std::abs(want[i]))
                << "matrix " << matrix << " at [" << row << ", " << column << "] of " << count << " x " << n
                << " x " << k << ", product " << static_cast<int>(kind);
            ASSERT_EQ(got[i], got[(matrix * elements + column) * elements + row])
                << "not symmetric at [" << row << ", " << column << "] of " << n << ", product "
                << static_cast<int>(kind);
        }
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (i % (elements + 8) >= elements) {
                ASSERT_TRUE(std::isnan(all[i])) << "written beyond a row";
            }
        }
    }
};

/// Three tiles; two are on the diagonal.
TEST_F(SymmetricProductOnCuda, OfThreeTiles) {
    if (const char* reason = why_not()) GTEST_SKIP() << reason;
    check_product({1, 256, 64}, Kind::gram_of_rows);
    check_product({1, 256, 64}, Kind::gram_of_columns);
    check_product({1, 256, 64}, Kind::polynomial);
}

TEST_F(SymmetricProductOnCuda, OfTilesThatAreCutOff) {
    if (const char* reason = why_not()) GTEST_SKIP() << reason;
    for (const Kind kind : {Kind::gram_of_rows, Kind::gram_of_columns, Kind::polynomial})
        for (const Sizes& sizes : {Sizes{1, 136, 8}, {2, 192, 72}, {3, 328, 1000}, {1, 520, 200}})
            check_product(sizes, kind);
}

/// More tiles than thread blocks: some thread blocks compute several tiles, from different matrices.
TEST_F(SymmetricProductOnCuda, OfManyMatrices) {
    if (const char* reason = why_not()) GTEST_SKIP() << reason;
    for (const Kind kind : {Kind::gram_of_rows, Kind::gram_of_columns, Kind::polynomial}) {
        check_product({50, 264, 136}, kind);
        check_product({7, 768, 136}, kind);
    }
}

/// Repeated, because a tile that is stored before its transpose has been read differs only sometimes.
TEST_F(SymmetricProductOnCuda, RepeatsToTheBit) {
    if (const char* reason = why_not()) GTEST_SKIP() << reason;
    for (const Kind kind : {Kind::gram_of_rows, Kind::gram_of_columns, Kind::polynomial}) {
        const Tensor x = operand({40, 384, 328}, kind), c = empty(gpu(), {40, 384, 384}, DType::bf16);
        std::vector<double> first;
        for (int i = 0; i < 20; ++i) {
            fill(gpu(), c, std::nan(""));
            ASSERT_TRUE(symmetric_product(gpu(), c, x, {.kind = kind, .polynomial = quintic}));
            std::vector<double> result = to_host(gpu(), c);
            if (i == 0) first = result;
            ASSERT_EQ(result, first) << "product " << static_cast<int>(kind) << ", repetition " << i;
        }
    }
}

TEST_F(SymmetricProductOnCuda, LeavesOtherProductsToTheLibrary) {
    if (const char* reason = why_not()) GTEST_SKIP() << reason;
    const auto computes = [&](const Shape& shape, DType type) {
        const Tensor x = zeros(gpu(), shape, type);
        return symmetric_product(gpu(), zeros(gpu(), {shape[0], shape[1], shape[1]}, type), x, {});
    };
    EXPECT_TRUE(computes({1, 256, 64}, DType::bf16));
    EXPECT_FALSE(computes({1, 256, 64}, DType::f32));
    EXPECT_FALSE(computes({1, 128, 64}, DType::bf16)) << "a single tile";
    EXPECT_FALSE(computes({1, 257, 64}, DType::bf16)) << "rows of c are not whole 16-byte pieces";
    EXPECT_FALSE(computes({1, 256, 65}, DType::bf16)) << "rows of x are not whole 16-byte pieces";
    ASSERT_EQ(setenv("GRADTILE_HOPPER_GEMM", "off", 1), 0);
    EXPECT_FALSE(computes({1, 256, 64}, DType::bf16));
    ASSERT_EQ(unsetenv("GRADTILE_HOPPER_GEMM"), 0);
}

TEST(SymmetricProduct, LeavesTheCpuToTheLibrary) {
    const Context ctx(Device::cpu(), 1);
    const Tensor x = zeros(ctx, {2, 200, 64}, DType::bf16), c = zeros(ctx, {2, 200, 200}, DType::bf16);
    EXPECT_FALSE(symmetric_product(ctx, c, x, {}));
}

TEST(SymmetricProduct, RefusesShapesThatDoNotFit) {
    const Context ctx(Device::cpu(), 1);
    const Tensor x = zeros(ctx, {2, 16, 24}, DType::f32);
    const auto product = [&](const Shape& c, Kind kind, DType type = DType::f32) {
        return [&ctx, &x, c, kind, type] { symmetric_product(ctx, zeros(ctx, c, type), x, {.kind = kind}); };
    };
    EXPECT_NO_THROW(product({2, 16, 16}, Kind::gram_of_rows)());
    EXPECT_NO_THROW(product({2, 24, 24}, Kind::gram_of_columns)());
    EXPECT_THROW(product({2, 24, 24}, Kind::gram_of_rows)(), Error);
    EXPECT_THROW(product({2, 16, 16}, Kind::gram_of_columns)(), Error);
    EXPECT_THROW(product({2, 16, 16}, Kind::polynomial)(), Error);
    EXPECT_THROW(product({1, 16, 16}, Kind::gram_of_rows)(), Error);
    EXPECT_THROW(product({2, 16, 24}, Kind::gram_of_rows)(), Error);
    EXPECT_THROW(product({2, 16, 16}, Kind::gram_of_rows, DType::f64)(), Error);
}

}  // namespace
}  // namespace gradtile
