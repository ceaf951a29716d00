#include <gradtile/core/gradcheck.h>

#include <cmath>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/tensor_ops.h>

#include <support/cpu_context.h>

namespace gradtile {
namespace {

using test::ctx;

Tensor map(const Tensor& x, double (*f)(double)) {
    auto values = to_host(ctx, x);
    for (double& value : values) value = f(value);
    return from_host(ctx, values, x.shape(), DType::f64);
}
Tensor times(const Tensor& x, const Tensor& y) {
    auto values = to_host(ctx, x);
    const auto others = to_host(ctx, y);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] *= others[i];
    return from_host(ctx, values, x.shape(), DType::f64);
}

/// y = tanh(x w), with optional errors in its gradient.
struct TanhProduct {
    double wrong_factor = 1.0;        ///< dw is multiplied by this factor
    std::int64_t wrong_element = -1;  ///< index of dx's wrong element; -1: none
    double wrong_by = 1e-5;
    bool wrong_shape = false;

    Tensor forward(const Context&, const std::vector<Tensor>& inputs) const {
        const Tensor y = empty(ctx, {inputs[0].size(0), inputs[1].size(1)}, DType::f64);
        gemm(ctx, y, inputs[0], inputs[1]);
        return map(y, [](double v) { return std::tanh(v); });
    }
    std::vector<Tensor> backward(const Context&, const std::vector<Tensor>& inputs,
                                 const Tensor& grad) const {
        const Tensor y = forward(ctx, inputs);
        const Tensor inner = times(grad, map(y, [](double v) { return 1 - v * v; }));
        Tensor dx = empty_like(ctx, inputs[0]), dw = empty_like(ctx, inputs[1]);
        gemm(ctx, dx, inner, inputs[1], {.trans_b = true});
        gemm(ctx, dw, inputs[0], inner, {.trans_a = true, .alpha = wrong_factor});
        if (wrong_element >= 0) dx.data<double>()[wrong_element] += wrong_by;
        if (wrong_shape) dw = dw.transpose(0, 1);
        return {dx, dw};
    }
};

std::vector<Tensor> inputs_of(std::int64_t rows, std::int64_t inner, std::int64_t columns) {
    return {randn(ctx, {rows, inner}, DType::f64, Seed{1}),
            randn(ctx, {inner, columns}, DType::f64, Seed{2})};
}

TEST(GradientCheck, AcceptsACorrectGradientAndRestoresTheInputs) {
    const auto inputs = inputs_of(5, 3, 4);
    const auto before = to_host(ctx, inputs[0]);
    const auto report = gradient_check(ctx, TanhProduct{}, inputs);
    EXPECT_TRUE(report.ok()) << report;
    ASSERT_EQ(report.inputs.size(), 2u);
    EXPECT_EQ(report.inputs[0].checked, 15);
    EXPECT_EQ(report.inputs[1].checked, 12);
    EXPECT_EQ(to_host(ctx, inputs[0]), before);
}

TEST(GradientCheck, BoundsAreTightEnoughToMeanSomething) {
    const auto report = gradient_check(ctx, TanhProduct{}, inputs_of(5, 3, 4));
    for (const auto& input : report.inputs) {
        EXPECT_LT(input.bound, 1e-5) << report;
        EXPECT_EQ(input.inconclusive, 0) << report;
    }
}

TEST(GradientCheck, CatchesAWrongFactorAndNamesTheInput) {
    const auto report = gradient_check(ctx, TanhProduct{.wrong_factor = 1.0001}, inputs_of(5, 3, 4));
    EXPECT_FALSE(report.ok());
    EXPECT_TRUE(report.inputs[0].ok) << report;
    EXPECT_FALSE(report.inputs[1].ok) << report;
}

TEST(GradientCheck, CatchesOneWrongElementAndNamesItsPlace) {
    const auto report = gradient_check(ctx, TanhProduct{.wrong_element = 7}, inputs_of(5, 3, 4));
    EXPECT_FALSE(report.inputs[0].ok) << report;
    EXPECT_EQ(report.inputs[0].place, (Shape{2, 1})) << report;
    EXPECT_TRUE(report.inputs[1].ok) << report;
}

TEST(GradientCheck, CatchesOneWrongElementOfALargeInputAlongARandomDirection) {
    const auto inputs = inputs_of(70, 60, 4);
    const GradientCheckOptions few{.elements = 3};
    EXPECT_TRUE(gradient_check(ctx, TanhProduct{}, inputs, few).ok())
        << gradient_check(ctx, TanhProduct{}, inputs, few);
    const TanhProduct wrong{.wrong_element = 1234, .wrong_by = 0.1};
    EXPECT_FALSE(gradient_check(ctx, wrong, inputs, few).ok());
}

TEST(GradientCheck, CatchesNan) {
    const TanhProduct wrong{.wrong_element = 2, .wrong_by = std::nan("")};
    EXPECT_FALSE(gradient_check(ctx, wrong, inputs_of(5, 3, 4)).ok());
}

TEST(GradientCheck, RefusesShapesDtypesAndViewsThatCannotBeChecked) {
    EXPECT_THROW(gradient_check(ctx, TanhProduct{.wrong_shape = true}, inputs_of(5, 3, 4)), Error);
    auto inputs = inputs_of(5, 3, 4);
    inputs[0] = cast(ctx, inputs[0], DType::f32);
    EXPECT_THROW(gradient_check(ctx, TanhProduct{}, inputs), Error);
    inputs[0] = randn(ctx, {1, 3}, DType::f64, Seed{1}).expand({5, 3});
    EXPECT_THROW(gradient_check(ctx, TanhProduct{}, inputs), Error);
}

TEST(GradientCheck, ChecksStridedInputs) {
    auto inputs = inputs_of(3, 5, 4);
    inputs[0] = randn(ctx, {5, 3}, DType::f64, Seed{1}).transpose(0, 1);
    struct Square {
        Tensor forward(const Context&, const std::vector<Tensor>& xs) const { return times(xs[0], xs[0]); }
        Tensor backward(const Context&, const std::vector<Tensor>& xs, const Tensor& grad) const {
            return times(times(xs[0], grad), map(xs[0], [](double) { return 2.0; }));
        }
    };
    const auto report = gradient_check(ctx, Square{}, {inputs[0]});
    EXPECT_TRUE(report.ok()) << report;
}

TEST(GradientCheck, ReportsThatAKinkMakesTheBoundTooWide) {
    struct Absolute {
        Tensor forward(const Context&, const std::vector<Tensor>& xs) const {
            return map(xs[0], [](double v) { return std::abs(v - 0x1p-12); });
        }
        Tensor backward(const Context&, const std::vector<Tensor>& xs, const Tensor& grad) const {
            return times(grad, map(xs[0], [](double v) { return v > 0x1p-12 ? 1.0 : -1.0; }));
        }
    };
    const Tensor at_the_kink = zeros(ctx, {4}, DType::f64);
    const auto report = gradient_check(ctx, Absolute{}, {at_the_kink});
    EXPECT_FALSE(report.ok()) << report;
}

/// y = x w^T + b with its parameters in a store.
struct TinyLinear {
    struct Saved {
        Tensor x;
    };
    Parameter weight, bias;
    enum class Gradients { as_asked, always_replaced, always_added } weight_gradients = Gradients::as_asked;

    Tensor forward(const Context&, const Tensor& x, Saved& saved) const {
        saved.x = x;
        const Tensor y = empty(ctx, {x.size(0), weight.shape()[0]}, DType::f64);
        gemm(ctx, y, x, weight.value(), {.trans_b = true, .bias = bias.value()});
        return y;
    }
    Tensor backward(const Context&, const Tensor& dy, const Saved& saved) const {
        const GradientTarget dw = weight.begin_gradient_write();
        const bool accumulate = weight_gradients == Gradients::as_asked
                                    ? dw.accumulates()
                                    : weight_gradients == Gradients::always_added;
        gemm(ctx, dw.grad, dy, saved.x, {.trans_a = true, .accumulate = accumulate});
        const Tensor db = ready_to_add(ctx, bias.begin_gradient_write());
        for (std::int64_t row = 0; row < dy.size(0); ++row) axpy(ctx, db, 1.0, dy.select(0, row));
        const Tensor dx = empty_like(ctx, saved.x);
        gemm(ctx, dx, dy, weight.value());
        return dx;
    }
};

TEST(GradientCheck, ChecksALayerWithItsParametersAndCatchesWrongAccumulation) {
    ParameterStore store;
    TinyLinear layer{store.add("weight", {4, 3}, Init::normal(0.02)), store.add("bias", {4}, Init::zeros())};
    store.allocate(ctx, DType::f64);
    store.initialize(ctx, Seed{1});
    const Tensor x = randn(ctx, {5, 3}, DType::f64, Seed{2});
    const auto right = gradient_check_layer(ctx, layer, x, store.parameters());
    EXPECT_TRUE(right.ok()) << right;
    EXPECT_EQ(right.inputs.size(), 3u);
    for (const auto unasked : {TinyLinear::Gradients::always_replaced, TinyLinear::Gradients::always_added}) {
        layer.weight_gradients = unasked;
        const auto wrong = gradient_check_layer(ctx, layer, x, store.parameters());
        EXPECT_TRUE(wrong.inputs[0].ok) << wrong;
        EXPECT_FALSE(wrong.inputs[1].ok) << wrong;
        EXPECT_TRUE(wrong.inputs[2].ok) << wrong;
    }
}

TEST(GradientCheck, PrintsOneLinePerInput) {
    std::ostringstream out;
    out << gradient_check(ctx, TanhProduct{.wrong_factor = 2}, inputs_of(5, 3, 4), {.names = {"x", "w"}});
    EXPECT_THAT(out.str(), testing::MatchesRegex("x \\[5, 3\\]: ok.*\nw \\[3, 4\\]: WRONG.*\n"));
}

TEST(GradientCheck, AnEmptyReportIsNotOk) {
    EXPECT_FALSE(GradientReport{}.ok());
}

}  // namespace
}  // namespace gradtile
