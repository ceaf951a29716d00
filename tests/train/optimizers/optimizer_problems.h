#pragma once
/// Parameters and gradients for optimizer tests on CPU and GPU.
#include <cmath>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/symmetric_product.h>
#include <gradtile/core/parameter_store.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/optimizers/elementwise_optimizer.h>
#include <gradtile/train/optimizers/global_norm.h>
#include <gradtile/train/optimizers/muon.h>

namespace gradtile::test {

inline constexpr AdamW adamw_options{.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.1};
inline constexpr double adamw_lr = 1e-2;
inline constexpr int adamw_steps = 20;

/// Parameters that are alternately matrices and vectors. One parameter is longer than a block.
struct AdamWProblem {
    AdamWProblem(const Context& ctx, DType dtype) {
        for (const auto& [name, shape] : {std::pair<const char*, Shape>{"embedding", {37, 9}},
                                          {"norm", {9}},
                                          {"bias", {27}},
                                          {"matrix", {301, 170}},
                                          {"last", {1}}})
            store.add(name, shape, Init::normal(0.5));
        store.allocate(ctx, dtype);
        store.initialize(ctx, Seed{11});
    }
    /// The gradient at step t for element i in the flat store. Sizes span seven orders of magnitude.
    static double gradient(std::int64_t i, int t) {
        const double size = std::pow(10.0, static_cast<double>(i % 7) - 4.0);
        return static_cast<double>(
            static_cast<float>(size * std::sin(0.37 * static_cast<double>(i) + 1.3 * t)));
    }
    /// Sets gradients that are equal on every device. The padding between parameters stays 0.
    void set_gradients(const Context& ctx, int t) {
        for (const Parameter& parameter : store.parameters()) {
            std::vector<double> values(static_cast<std::size_t>(parameter.shape().elements()));
            for (std::size_t i = 0; i < values.size(); ++i)
                values[i] = gradient(parameter.offset() + static_cast<std::int64_t>(i), t);
            copy(ctx, parameter.grad(), from_host(ctx, values, parameter.shape(), parameter.grad().dtype()));
        }
    }
    ParameterStore store;
};

// The products are float32 on every device, so that results can be compared.
inline const MuonOptions muon_options{
    .matrix = {.lr_ratio = 20.0, .weight_decay = 0.1, .adamw = {.weight_decay = 0.1}},
    .newton_schulz = DType::f32};
/// Every variation of Muon.
inline const MuonOptions normuon_options{
    .matrix = {.lr_ratio = 20.0,
               .momentum = {.decay = 0.95, .nesterov = false, .warmup = 2},
               .beta2 = 0.9,
               .weight_decay = 0.1,
               .cautious_decay = true,
               .adamw = {.weight_decay = 0.1, .cautious_decay = true},
               .lr_factor = [](const Parameter& parameter) { return parameter.decays() ? 3.0 : 0.5; }},
    .coefficients = MuonCoefficients::polar_express,
    .scale = MuonScale::rms,
    .newton_schulz = DType::f32};
inline constexpr double muon_lr = 1e-3;

/// Matrices for Muon, two in one stack, and parameters for AdamW.
struct MuonProblem {
    MuonProblem(const Context& ctx, DType dtype) {
        store.add("embedding", {20, 8}, Init::normal(0.5));
        store.add("blocks.0.tall", {32, 8}, Init::normal(0.5));
        store.add("blocks.0.bias", {32}, Init::normal(0.5));
        store.add("blocks.0.wide", {8, 32}, Init::normal(0.5));
        store.add("blocks.1.tall", {32, 8}, Init::normal(0.5));
        store.allocate(ctx, dtype);
        store.initialize(ctx, Seed{5});
    }
    void set_gradients(const Context& ctx, std::uint64_t t) {
        copy(ctx, store.gradients(),
             randn(ctx, store.gradients().shape(), store.gradients().dtype(), Seed{100 + t}));
    }
    ParameterStore store;
};

/// Every matrix of a block is one matrix.
inline std::vector<std::int64_t> in_blocks(const Parameter& parameter) {
    if (!parameter.name().starts_with("blocks.") || parameter.shape().rank() != 2) return {};
    return {parameter.shape()[0]};
}

/// The tall matrices pack three.
inline std::vector<std::int64_t> packed_in_blocks(const Parameter& parameter) {
    if (!parameter.name().ends_with(".tall")) return in_blocks(parameter);
    return {16, 8, 8};
}

inline Tensor rounded(const Context& ctx, const Tensor& x) {
    return cast(ctx, cast(ctx, x, DType::bf16), x.dtype());
}

/// Returns alpha x + beta y. Each product and the sum is rounded to bfloat16.
inline Tensor rounded_sum(const Context& ctx, double alpha, const Tensor& x, double beta, const Tensor& y) {
    const Tensor left = zeros(ctx, x.shape(), x.dtype()), right = zeros(ctx, x.shape(), x.dtype());
    axpy(ctx, left, alpha, x);
    axpy(ctx, right, beta, y);
    const Tensor sum = rounded(ctx, left);
    axpy(ctx, sum, 1.0, rounded(ctx, right));
    return rounded(ctx, sum);
}

/// The published function zeropower_via_newtonschulz5 (github.com/KellerJordan/Muon), in which every tensor
/// is bfloat16.
inline Tensor published_newton_schulz(const Context& ctx, const Tensor& x) {
    const bool tall = x.size(0) > x.size(1);
    const Tensor scaled = zeros(ctx, x.shape(), DType::f32);
    axpy(ctx, scaled, 1.0 / (item(ctx, global_norm(ctx, x)) + 1e-7), x);
    Tensor iterate = rounded(ctx, tall ? scaled.transpose(0, 1) : scaled);
    const auto product = [&](const Tensor& a, const Tensor& b, bool transposed) {
        const Tensor c = empty(ctx, {a.size(0), transposed ? b.size(0) : b.size(1)}, DType::f32);
        gemm(ctx, c, a, b, {.trans_b = transposed});
        return rounded(ctx, c);
    };
    for (int step = 0; step < 5; ++step) {
        const Tensor a = product(iterate, iterate, true);
        const Tensor b = rounded_sum(ctx, -4.7750, a, 2.0315, product(a, a, false));
        iterate = rounded_sum(ctx, 3.4445, iterate, 1.0, product(b, iterate, false));
    }
    return tall ? cast(ctx, iterate.transpose(0, 1), DType::f32) : iterate;
}

/// The Frobenius norm ||x - y||.
inline double distance(const Context& ctx, const Tensor& x, const Tensor& y) {
    const Tensor difference = cast(ctx, x, DType::f64);
    axpy(ctx, difference, -1.0, cast(ctx, y, DType::f64));
    return item(ctx, global_norm(ctx, difference));
}

/// Computed in long double. For the tested lengths the result is exact up to the rounding to float64.
inline double reference_norm(const std::vector<double>& x) {
    long double sum = 0;
    for (const double value : x) sum += static_cast<long double>(value) * static_cast<long double>(value);
    return static_cast<double>(std::sqrt(sum));
}

/// Takes one step, and then a refused step with gradients that are NaN. Expects that the refused step changes
/// neither weights nor state, and that it keeps the gradients, so that an error message can name them.
template <class Problem>
void expect_a_refused_update_changes_nothing(const Context& ctx, Problem& problem, Optimizer& optimizer,
                                             double lr) {
    problem.set_gradients(ctx, 1);
    optimizer.step(ctx, lr);
    const auto everything = [&] {
        std::vector<std::vector<double>> all{to_host(ctx, problem.store.master()),
                                             to_host(ctx, problem.store.values())};
        for (const StateTensor& part : optimizer.state()) all.push_back(to_host(ctx, part.tensor));
        return all;
    };
    const auto before = everything();
    fill(ctx, problem.store.gradients(), std::nan(""));
    optimizer.step(ctx, lr, {.gradient_scale = zeros(ctx, {1}, DType::f64)});
    EXPECT_EQ(everything(), before);
    EXPECT_THAT(to_host(ctx, problem.store.gradients()), testing::Each(testing::IsNan()));
}

/// Expects that all elements differ by at most the bound.
inline void expect_near(const Context& ctx, const Tensor& x, const Tensor& expected, double bound) {
    const auto a = to_host(ctx, x), b = to_host(ctx, expected);
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], bound) << i;
}

}  // namespace gradtile::test
