// Newton-Schulz iterations, which orthogonalise Muon's updates, against their polynomials of singular values.
#include <bit>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/optimizers/muon.h>

#include "optimizer_problems.h"

namespace gradtile {
namespace {

using test::distance;
using test::expect_near;
using test::published_newton_schulz;

/// The five quintic steps that Newton-Schulz applies to each singular value.
double newton_schulz_of_scalar(double s) {
    for (int i = 0; i < 5; ++i) s = 3.4445 * s - 4.7750 * s * s * s + 2.0315 * s * s * s * s * s;
    return s;
}

/// The quintics of Amsel et al. 2025, algorithm 1, for degree 5 and five steps: a normalised singular value
/// is divided by 1.01 before the first quintic, and each quintic's argument is, too.
double polar_express_of_scalar(double s) {
    constexpr double quintics[][3] = {{8.28721201814563, -23.595886519098837, 17.300387312530933},
                                      {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                                      {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
                                      {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                                      {2.300652019954817, -1.6689039845747493, 0.4188073119525673}};
    s /= 1.01;
    for (const auto& [a, b, c] : quintics) {
        const double x = s / 1.01;
        s = a * x + b * x * x * x + c * x * x * x * x * x;
    }
    return s;
}

double convergent_of_scalar(double s) {
    for (int i = 0; i < 12; ++i) s = 2.0 * s - 1.5 * s * s * s + 0.5 * s * s * s * s * s;
    return s;
}

/// How the quintics of each kind change a singular value.
struct ScalarQuintics {
    MuonCoefficients coefficients;
    const char* name;
    double (*of_scalar)(double);
    int steps;
    double largest_slope;  // of all steps together, at 0: the product of the linear coefficients
};
constexpr ScalarQuintics all_quintics[] = {
    {MuonCoefficients::jordan, "Jordan", newton_schulz_of_scalar, 5, 500.0},
    {MuonCoefficients::polar_express, "PolarExpress", polar_express_of_scalar, 5, 967.0},
    {MuonCoefficients::convergent, "Convergent", convergent_of_scalar, 12, 4096.0}};

/// Returns a matrix with orthonormal columns, rows >= cols: columns from the Sylvester Hadamard matrix.
Tensor hadamard_columns(const Context& ctx, std::int64_t rows, std::int64_t cols) {
    Tensor x = empty(ctx, {rows, cols}, DType::f64);
    for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < cols; ++j)
            x.data<double>()[i * cols + j] =
                (std::popcount(static_cast<std::uint64_t>(i & j)) % 2 == 0 ? 1.0 : -1.0) /
                std::sqrt(static_cast<double>(rows));
    return x;
}

/// Returns U diag(s) V^T. The singular vectors U and V are the same for all s.
Tensor with_singular_values(const Context& ctx, std::int64_t rows, const std::vector<double>& s) {
    const auto n = static_cast<std::int64_t>(s.size());
    const Tensor u = hadamard_columns(ctx, rows, n), v = hadamard_columns(ctx, n, n);
    const Tensor us = cast(ctx, u, DType::f64);
    for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < n; ++j) us.data<double>()[i * n + j] *= s[static_cast<std::size_t>(j)];
    Tensor x = empty(ctx, {rows, n}, DType::f64);
    gemm(ctx, x, us, v, {.trans_b = true});
    return x;
}

class NewtonSchulzWith : public testing::TestWithParam<ScalarQuintics> {};
INSTANTIATE_TEST_SUITE_P(All, NewtonSchulzWith, testing::ValuesIn(all_quintics),
                         [](const auto& info) { return info.param.name; });

TEST_P(NewtonSchulzWith, AppliesItsQuinticsToEverySingularValue) {
    const Context ctx;
    const std::vector<double> s{2.0, 1.0, 0.9, 0.5, 0.3, 0.2, 0.1, 0.05};
    double squares = 0.0;
    for (const double value : s) squares += value * value;
    std::vector<double> expected;
    for (const double value : s)
        expected.push_back(GetParam().of_scalar(value / (std::sqrt(squares) + 1e-7)));
    // The roundings in the steps with three products of at most 32 terms each, multiplied by the largest
    // slope of all quintics together.
    const double bound =
        GetParam().largest_slope * GetParam().steps * 3 * 32 * std::numeric_limits<double>::epsilon();
    for (const std::int64_t rows : {8, 32}) {
        Tensor x = with_singular_values(ctx, rows, s);
        newton_schulz(ctx, x, x.dtype(), GetParam().coefficients);
        expect_near(ctx, x, with_singular_values(ctx, rows, expected), bound);
        // A wide matrix is a transposed tall one.
        Tensor wide = cast(ctx, with_singular_values(ctx, rows, s).transpose(0, 1), DType::f64);
        newton_schulz(ctx, wide, wide.dtype(), GetParam().coefficients);
        expect_near(ctx, wide, with_singular_values(ctx, rows, expected).transpose(0, 1), bound);
    }
}

/// The claim of the paper: every singular value in [0.001, 1] comes near 1. Jordan's quintic leaves small
/// ones at a half. The bounds are the values of the scalar polynomials on a fine grid.
TEST(NewtonSchulz, WithOtherQuinticsBringsSmallSingularValuesNearerToOne) {
    const Context ctx;
    const std::vector<double> s{1.0, 0.008, 0.5, 0.25, 0.125, 0.0625, 0.03, 0.015};
    const auto smallest_of = [&](MuonCoefficients coefficients) {
        const Tensor x = with_singular_values(ctx, 8, s);
        newton_schulz(ctx, x, DType::f64, coefficients);
        const Tensor u = hadamard_columns(ctx, 8, 8), ux = empty_like(ctx, x), uxv = empty_like(ctx, x);
        gemm(ctx, ux, u, x, {.trans_a = true});
        gemm(ctx, uxv, ux, u);
        double smallest = 2.0, largest = 0.0;
        for (std::int64_t i = 0; i < 8; ++i) {
            smallest = std::min(smallest, uxv.data<double>()[i * 9]);
            largest = std::max(largest, uxv.data<double>()[i * 9]);
        }
        EXPECT_LT(largest, 1.21);
        return smallest;
    };
    EXPECT_GT(smallest_of(MuonCoefficients::polar_express), 0.84);
    EXPECT_GT(smallest_of(MuonCoefficients::polar_express), smallest_of(MuonCoefficients::jordan));
    EXPECT_NEAR(smallest_of(MuonCoefficients::convergent), 1.0, 1e-9);
}

TEST(NewtonSchulz, OrthogonalizesAStackLikeSeparateMatrices) {
    const Context ctx(Device::cpu(), 2);
    for (const Shape& shape : {Shape{3, 24, 40}, Shape{3, 40, 24}, Shape{3, 32, 32}, Shape{1, 5, 1}}) {
        const Tensor stack = randn(ctx, shape, DType::f64, Seed{3}), separate = cast(ctx, stack, DType::f64);
        newton_schulz(ctx, stack, stack.dtype());
        for (std::int64_t i = 0; i < shape[0]; ++i) newton_schulz(ctx, separate.select(0, i), DType::f64);
        // A library may sum the same products in another order when their number differs.
        expect_near(ctx, stack, separate, 500.0 * 5 * 3 * 40 * std::numeric_limits<double>::epsilon());
    }
}

TEST(NewtonSchulz, OfZeroIsZero) {
    const Context ctx;
    for (const DType products : {DType::f32, DType::bf16}) {
        const Tensor x = zeros(ctx, {4, 8}, DType::f32);
        newton_schulz(ctx, x, products);
        for (const double value : to_host(ctx, x)) EXPECT_EQ(value, 0.0);
    }
}

/// gradtile's form rounds less often than the published one, which also rounds b A, c A^2, their sum, a X and
/// B X.
TEST(NewtonSchulz, InBfloat16IsAsAccurateAsPublished) {
    const Context ctx(Device::cpu(), 2);
    for (const Shape& shape : {Shape{96, 96}, Shape{128, 64}, Shape{48, 192}})
        for (const Seed seed : {Seed{1}, Seed{2}, Seed{3}}) {
            const Tensor x = randn(ctx, shape, DType::f32, seed);
            const Tensor exact = cast(ctx, x, DType::f64), ours = cast(ctx, x, DType::f32);
            newton_schulz(ctx, exact, DType::f64);
            newton_schulz(ctx, ours, DType::bf16);
            EXPECT_LE(distance(ctx, ours, exact), distance(ctx, published_newton_schulz(ctx, x), exact))
                << shape;
            const Tensor in_f32 = cast(ctx, x, DType::f32);
            newton_schulz(ctx, in_f32, DType::f32);
            EXPECT_GT(distance(ctx, ours, in_f32), 0.0) << "the products were not of bfloat16";
        }
}

TEST(NewtonSchulz, RefusesUnsupportedDtypesOfProducts) {
    const Context ctx(Device::cpu(), 1);
    const Tensor x = zeros(ctx, {2, 2}, DType::f64);
    EXPECT_THROW(newton_schulz(ctx, x, DType::bf16), Error);
    EXPECT_THROW(newton_schulz(ctx, x, DType::f32), Error);
}

}  // namespace
}  // namespace gradtile
