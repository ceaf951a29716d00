#include <gradtile/layers/linear.h>

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gradcheck.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

struct Fixture {
    Context ctx{Device::cpu(), 2};
    ParameterStore parameters;
    Linear linear;

    Fixture(std::int64_t in, std::int64_t out, bool bias, DType dtype = DType::f64, int threads = 2)
        : ctx(Device::cpu(), threads),
          linear(parameters, "linear", in, out, {.bias = bias, .init = Init::normal(0.5)}) {
        parameters.allocate(ctx, dtype);
        parameters.initialize(ctx, Seed{1});
        if (bias) copy(ctx, linear.bias.value(), randn(ctx, {out}, dtype, Seed{2}));
    }
};

TEST(Linear, GradientsOfInputWeightAndBiasEqualFiniteDifferences) {
    for (const auto& [rows, in, out] : {std::array<std::int64_t, 3>{1, 1, 1}, {5, 3, 7}, {131, 17, 2}}) {
        Fixture f(in, out, /*bias=*/true);
        const Tensor x = randn(f.ctx, {rows, in}, DType::f64, Seed{3});
        const auto report = gradient_check_layer(f.ctx, f.linear, x, f.parameters.parameters());
        EXPECT_TRUE(report.ok()) << report;
    }
}

TEST(Linear, ParameterGradientsAccumulateAndTheInputGradientOverwrites) {
    Fixture f(4, 6, /*bias=*/true);
    const Tensor x = randn(f.ctx, {3, 4}, DType::f64, Seed{3});
    const Tensor dy = randn(f.ctx, {3, 6}, DType::f64, Seed{4});
    Linear::Saved saved;
    f.linear.forward(f.ctx, x, saved);
    const auto dx_once = to_host(f.ctx, f.linear.backward(f.ctx, dy, saved));
    const auto once = to_host(f.ctx, f.parameters.gradients());
    const auto dx_twice = to_host(f.ctx, f.linear.backward(f.ctx, dy, saved));
    const auto twice = to_host(f.ctx, f.parameters.gradients());
    EXPECT_EQ(dx_once, dx_twice);
    for (std::size_t i = 0; i < once.size(); ++i)
        EXPECT_NEAR(twice[i], 2.0 * once[i], 4 * std::numeric_limits<double>::epsilon() * std::abs(twice[i]));
}

TEST(Linear, ReadsStridedRowsAndEmptyBatches) {
    Fixture f(4, 6, /*bias=*/true);
    const Tensor wide = randn(f.ctx, {2, 3, 10}, DType::f64, Seed{3});
    const Tensor view = wide.slice(-1, 5, 4);
    Linear::Saved saved;
    EXPECT_EQ(to_host(f.ctx, f.linear.forward(f.ctx, view, saved)),
              to_host(f.ctx, f.linear.forward(f.ctx, cast(f.ctx, view, DType::f64), saved)));

    const Tensor none = zeros(f.ctx, {0, 3, 4}, DType::f64);
    const Tensor y = f.linear.forward(f.ctx, none, saved);
    EXPECT_EQ(y.shape(), (Shape{0, 3, 6}));
    EXPECT_EQ(f.linear.backward(f.ctx, y, saved).shape(), none.shape());
    EXPECT_THAT(to_host(f.ctx, f.parameters.gradients()), ::testing::Each(0.0));
}

/// A float32 sum of n products is off by at most n units of rounding of the sum of their magnitudes; a
/// bfloat16 result is rounded once more, while its parameter gradients stay float32.
TEST(Linear, ShortFloatsAreAsAccurateAsTheirSumsAllow) {
    const std::int64_t rows = 300, in = 40, out = 24;
    for (const DType dtype : {DType::f32, DType::bf16}) {
        Fixture exact(in, out, true), rounded(in, out, true, dtype);
        const Tensor x = randn(rounded.ctx, {rows, in}, dtype, Seed{3});
        const Tensor dy = randn(rounded.ctx, {rows, out}, dtype, Seed{4});
        copy(exact.ctx, exact.parameters.values(), rounded.parameters.values());
        const Tensor x_exact = cast(exact.ctx, x, DType::f64), dy_exact = cast(exact.ctx, dy, DType::f64);

        Linear::Saved saved, saved_exact;
        const auto y = to_host(rounded.ctx, rounded.linear.forward(rounded.ctx, x, saved));
        const auto y_exact = to_host(exact.ctx, exact.linear.forward(exact.ctx, x_exact, saved_exact));
        const auto dx = to_host(rounded.ctx, rounded.linear.backward(rounded.ctx, dy, saved));
        const auto dx_exact = to_host(exact.ctx, exact.linear.backward(exact.ctx, dy_exact, saved_exact));
        const auto gradients = to_host(rounded.ctx, rounded.parameters.gradients());
        const auto gradients_exact = to_host(exact.ctx, exact.parameters.gradients());
        EXPECT_EQ(rounded.parameters.gradients().dtype(), DType::f32);

        const double sum_unit = std::numeric_limits<float>::epsilon();
        const double store_unit = dtype == DType::bf16 ? std::ldexp(1.0, -8) : 0.0;
        const auto largest = [](const std::vector<double>& values) {
            double result = 0.0;
            for (const double v : values) result = std::max(result, std::abs(v));
            return result;
        };
        const double xs = largest(to_host(exact.ctx, x_exact)), dys = largest(to_host(exact.ctx, dy_exact));
        const double ws = largest(to_host(exact.ctx, exact.parameters.values()));
        const auto expect_close = [&](const auto& got, const auto& want, double terms, double magnitude,
                                      double rounding) {
            for (std::size_t i = 0; i < got.size(); ++i)
                ASSERT_NEAR(got[i], want[i],
                            terms * sum_unit * terms * magnitude + rounding * std::abs(want[i]) * 1.01);
        };
        expect_close(y, y_exact, in + 1, xs * ws, store_unit);
        expect_close(dx, dx_exact, out, dys * ws, store_unit);
        expect_close(gradients, gradients_exact, rows, dys * std::max(xs, 1.0), 0.0);
    }
}

TEST(Linear, BitsDoNotDependOnTheNumberOfThreads) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
        std::vector<double> expected;
        for (const int threads : {1, 2, 3}) {
            Fixture f(96, 320, true, dtype, threads);
            const Tensor x = randn(f.ctx, {400, 96}, dtype, Seed{3});
            Linear::Saved saved;
            const Tensor y = f.linear.forward(f.ctx, x, saved);
            std::vector<double> all = to_host(f.ctx, f.linear.backward(f.ctx, y, saved));
            for (const double g : to_host(f.ctx, f.parameters.gradients())) all.push_back(g);
            if (threads == 1) {
                expected = all;
            } else {
                EXPECT_EQ(all, expected) << threads << " threads";
            }
        }
    }
}

TEST(Linear, RefusesOtherShapesAndDtypesByName) {
    Fixture f(4, 6, true);
    Linear::Saved saved;
    EXPECT_THROW(f.linear.forward(f.ctx, zeros(f.ctx, {3, 5}, DType::f64), saved), Error);
    EXPECT_THROW(f.linear.forward(f.ctx, zeros(f.ctx, {3, 4}, DType::f32), saved), Error);
    f.linear.forward(f.ctx, zeros(f.ctx, {3, 4}, DType::f64), saved);
    EXPECT_THROW(f.linear.backward(f.ctx, zeros(f.ctx, {3, 4}, DType::f64), saved), Error);
    EXPECT_THROW(f.linear.backward(f.ctx, zeros(f.ctx, {2, 6}, DType::f64), saved), Error);
}

}  // namespace
}  // namespace gradtile
