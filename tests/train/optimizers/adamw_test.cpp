#include <gradtile/train/optimizers/elementwise_optimizer.h>

#include <cmath>
#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>

#include "optimizer_problems.h"

namespace gradtile {
namespace {

using test::adamw_lr;
using test::adamw_options;
using test::adamw_steps;
using test::AdamWProblem;

/// The torch.optim.AdamW formula for one element, in float64.
struct ScalarAdamW {
    double w, m = 0.0, v = 0.0;
    int t = 0;
    void step(double g, double lr, double decay, const AdamW& o) {
        ++t;
        w *= 1.0 - lr * decay;
        m += (g - m) * (1.0 - o.beta1);
        v = v * o.beta2 + (1.0 - o.beta2) * g * g;
        const double denominator = std::sqrt(v) / std::sqrt(1.0 - std::pow(o.beta2, t)) + o.epsilon;
        w -= lr / (1.0 - std::pow(o.beta1, t)) * m / denominator;
    }
};

/// The rounding error after `adamw_steps` updates in a dtype with this epsilon. Each step rounds w twice
/// (after decay and after subtraction), and rounds about 16 times in computing the update, which is at most
/// lr / sqrt(1 - beta2).
double rounding_bound(double weight, double epsilon) {
    const double update = adamw_lr / std::sqrt(1.0 - adamw_options.beta2);
    return adamw_steps * epsilon * (2.0 * (std::abs(weight) + adamw_steps * update) + 16.0 * update);
}

void expect_equal_to_scalar_adamw(DType dtype) {
    const Context ctx;
    AdamWProblem problem(ctx, dtype);
    ParameterStore& store = problem.store;
    std::vector<ScalarAdamW> reference;
    for (const double w : to_host(ctx, store.master())) reference.push_back({.w = w});
    ElementwiseOptimizer optimizer(ctx, store, adamw_options);
    for (int t = 1; t <= adamw_steps; ++t) {
        problem.set_gradients(ctx, t);
        optimizer.step(ctx, adamw_lr);
        for (const Parameter& parameter : store.parameters())
            for (std::int64_t i = parameter.offset(); i < parameter.offset() + parameter.shape().elements();
                 ++i)
                reference[static_cast<std::size_t>(i)].step(
                    AdamWProblem::gradient(i, t), adamw_lr,
                    parameter.decays() ? adamw_options.weight_decay : 0.0, adamw_options);
    }
    const double epsilon =
        dtype == DType::f64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
    const std::vector<double> master = to_host(ctx, store.master());
    for (std::size_t i = 0; i < master.size(); ++i)
        ASSERT_NEAR(master[i], reference[i].w, rounding_bound(reference[i].w, epsilon)) << "element " << i;
}

TEST(AdamW, EqualsPyTorchsFormulaInFloat64) {
    expect_equal_to_scalar_adamw(DType::f64);
}
TEST(AdamW, EqualsPyTorchsFormulaInFloat32) {
    expect_equal_to_scalar_adamw(DType::f32);
}
TEST(AdamW, UpdatesFloat32MastersOfBfloat16) {
    expect_equal_to_scalar_adamw(DType::bf16);
}

TEST(AdamW, EqualsStoredNumbersOfAnIndependentProgram) {
    // Expected values from torch.optim.AdamW's formula in numpy, with lr 1e-2, betas 0.9 and 0.99, decay 0.1.
    const Context ctx;
    ParameterStore store;
    const Parameter matrix = store.add("matrix", {2, 2}, Init::zeros());
    store.allocate(ctx, DType::f64);
    copy(ctx, matrix.value(), from_host(ctx, std::vector{0.5, -1.25, 2.0, 0.03125}, {2, 2}, DType::f64));
    ElementwiseOptimizer optimizer(ctx, store, adamw_options);
    const std::vector<double> sizes{1.0, 0.1, 10.0, 1e-4};
    const std::vector<double> after_1{0.4895000001188395, -1.258749998991595, 1.9880000000148046,
                                      0.02124274194114538};
    const std::vector<double> after_10{0.45869628770044557, -1.2600831953941372, 1.9785565415741633,
                                       0.05027796912854607};
    for (int t = 1; t <= 10; ++t) {
        for (int i = 0; i < 4; ++i)
            matrix.grad().data<double>()[i] =
                std::sin(1.0 * t + 0.7 * i) * sizes[static_cast<std::size_t>(i)];
        optimizer.step(ctx, adamw_lr);
        if (t != 1 && t != 10) continue;
        const std::vector<double> now = to_host(ctx, matrix.value());
        const std::vector<double>& expected = t == 1 ? after_1 : after_10;
        for (std::size_t i = 0; i < 4; ++i)
            EXPECT_NEAR(now[i], expected[i], rounding_bound(2.0, std::numeric_limits<double>::epsilon()));
    }
}

TEST(AdamW, StepsByLrTimesTheSignWhenTheGradientIsConstant) {
    // For constant gradients the corrected moments are g and g^2, so w_t = w_0 - t lr g / (|g| + epsilon).
    const Context ctx;
    ParameterStore store;
    const Parameter vector = store.add("vector", {3}, Init::ones());
    store.allocate(ctx, DType::f64);
    store.initialize(ctx, Seed{1});
    ElementwiseOptimizer optimizer(ctx, store, adamw_options);
    const std::vector<double> gradient{2.0, -1e-3, 1e-8};
    copy(ctx, vector.grad(), from_host(ctx, gradient, {3}, DType::f64));
    for (int t = 1; t <= adamw_steps; ++t) optimizer.step(ctx, adamw_lr);
    for (std::size_t i = 0; i < 3; ++i)
        EXPECT_NEAR(
            vector.value().data<double>()[i],
            1.0 - adamw_steps * adamw_lr * gradient[i] / (std::abs(gradient[i]) + adamw_options.epsilon),
            rounding_bound(1.0, std::numeric_limits<double>::epsilon()));
}

TEST(AdamW, DecaysMatricesAndNotVectors) {
    const Context ctx;
    ParameterStore store;
    const Parameter matrix = store.add("matrix", {2, 3}, Init::ones());
    const Parameter vector = store.add("vector", {3}, Init::ones());
    store.allocate(ctx, DType::f64);
    store.initialize(ctx, Seed{1});
    ElementwiseOptimizer optimizer(ctx, store, adamw_options);
    optimizer.step(ctx, adamw_lr);  // gradients are 0
    for (const double w : to_host(ctx, matrix.value()))
        EXPECT_DOUBLE_EQ(w, 1.0 - adamw_lr * adamw_options.weight_decay);
    for (const double w : to_host(ctx, vector.value())) EXPECT_EQ(w, 1.0);
}

TEST(AdamW, RoundsValuesFromMastersInTheSamePass) {
    const Context ctx;
    AdamWProblem problem(ctx, DType::bf16);
    ElementwiseOptimizer optimizer(ctx, problem.store, adamw_options);
    problem.set_gradients(ctx, 1);
    optimizer.step(ctx, adamw_lr);
    const float* master = problem.store.master().data<float>();
    const bfloat16* value = problem.store.values().data<bfloat16>();
    for (std::int64_t i = 0; i < problem.store.flat_elements(); ++i)
        ASSERT_EQ(value[i].bits, bfloat16(master[i]).bits) << i;
}

TEST(AdamW, DoesNotDependOnTheNumberOfThreads) {
    std::vector<std::vector<double>> results;
    for (const int threads : {1, 3}) {
        const Context ctx(Device::cpu(), threads);
        AdamWProblem problem(ctx, DType::f32);
        ElementwiseOptimizer optimizer(ctx, problem.store, adamw_options);
        for (int t = 1; t <= 3; ++t) {
            problem.set_gradients(ctx, t);
            optimizer.step(ctx, adamw_lr);
        }
        results.push_back(to_host(ctx, problem.store.values()));
    }
    EXPECT_EQ(results[0], results[1]);
}

TEST(AdamW, AppliesTheGradientScale) {
    const Context ctx;
    AdamWProblem scaled(ctx, DType::f64), halved(ctx, DType::f64);
    ElementwiseOptimizer scaled_optimizer(ctx, scaled.store, adamw_options),
        halved_optimizer(ctx, halved.store, adamw_options);
    for (int t = 1; t <= 3; ++t) {
        scaled.set_gradients(ctx, t);
        scaled_optimizer.step(ctx, adamw_lr,
                              {.gradient_scale = from_host(ctx, std::vector{0.5}, {1}, DType::f64)});
        halved.set_gradients(ctx, t);
        axpy(ctx, halved.store.gradients(), -0.5, cast(ctx, halved.store.gradients(), DType::f64));
        halved_optimizer.step(ctx, adamw_lr);
    }
    EXPECT_EQ(to_host(ctx, scaled.store.values()), to_host(ctx, halved.store.values()));
}

TEST(AdamW, ChangesNothingWhenTheUpdateIsRefused) {
    const Context ctx;
    AdamWProblem problem(ctx, DType::bf16);
    ElementwiseOptimizer optimizer(ctx, problem.store, adamw_options);
    test::expect_a_refused_update_changes_nothing(ctx, problem, optimizer, adamw_lr);
}

TEST(AdamW, DoesNotChangeGradients) {
    const Context ctx;
    AdamWProblem problem(ctx, DType::f32);
    ElementwiseOptimizer optimizer(ctx, problem.store, adamw_options);
    problem.set_gradients(ctx, 1);
    const std::vector<double> before = to_host(ctx, problem.store.gradients());
    optimizer.step(ctx, adamw_lr);
    EXPECT_EQ(to_host(ctx, problem.store.gradients()), before);
}

TEST(AdamW, ContinuesBitIdenticallyFromACopyOfItsState) {
    const Context ctx;
    AdamWProblem straight(ctx, DType::f32), resumed(ctx, DType::f32);
    ElementwiseOptimizer first(ctx, straight.store, adamw_options);
    for (int t = 1; t <= 3; ++t) {
        straight.set_gradients(ctx, t);
        first.step(ctx, adamw_lr);
    }
    ElementwiseOptimizer second(ctx, resumed.store, adamw_options);
    copy(ctx, resumed.store.values(), straight.store.values());
    const auto from = first.state(), to = second.state();
    ASSERT_EQ(from.size(), to.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
        EXPECT_EQ(from[i].name, to[i].name);
        copy(ctx, to[i].tensor, from[i].tensor);
    }
    for (int t = 4; t <= 6; ++t)
        for (auto* side : {&straight, &resumed}) {
            side->set_gradients(ctx, t);
            (side == &straight ? first : second).step(ctx, adamw_lr);
        }
    EXPECT_EQ(to_host(ctx, straight.store.values()), to_host(ctx, resumed.store.values()));
}

TEST(AdamW, MultipliesTheRateOfAParameterByItsFactor) {
    const Context ctx;
    const auto values_after = [&](double lr, const LearningRateFactor& factor) {
        AdamWProblem problem(ctx, DType::f32);
        ElementwiseOptimizer optimizer(ctx, problem.store, problem.store.parameters(), adamw_options, {},
                                       factor);
        for (int t = 1; t <= 3; ++t) {
            problem.set_gradients(ctx, t);
            optimizer.step(ctx, lr);
        }
        std::map<std::string, std::vector<double>> values;
        for (const Parameter& parameter : problem.store.parameters())
            values[parameter.name()] = to_host(ctx, parameter.value());
        return values;
    };
    const auto factor_of = [](const Parameter& parameter) {
        return parameter.name() == "embedding" ? 4.0 : parameter.decays() ? 1.0 : 0.5;
    };
    const auto plain = values_after(adamw_lr, {}), high = values_after(4 * adamw_lr, {}),
               low = values_after(adamw_lr / 2, {}), mixed = values_after(adamw_lr, factor_of);
    for (const auto& [name, values] : mixed)
        EXPECT_EQ(values, (name == "embedding" ? high : name == "matrix" ? plain : low).at(name)) << name;
}

TEST(AdamW, RefusesMoreRatesThanAStepPrepares) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    for (int i = 0; i < 9; ++i) store.add(concat("p", i), {2, 2}, Init::zeros());
    store.allocate(ctx, DType::f32);
    const auto factor = [](const Parameter& parameter) { return parameter.name()[1] - '0' + 1.0; };
    EXPECT_THAT([&] { ElementwiseOptimizer(ctx, store, store.parameters(), AdamW{}, {}, factor); },
                testing::ThrowsMessage<Error>(testing::HasSubstr("9 different learning rates")));
}

TEST(AdamW, RefusesDecaysOutOfTheSettingsRange) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    store.add("p", {2, 2}, Init::zeros());
    store.allocate(ctx, DType::f32);
    EXPECT_THAT([&] { ElementwiseOptimizer(ctx, store, AdamW{.beta1 = 1}); },
                testing::ThrowsMessage<Error>("optimizer: beta1: 1; expected 0 or more, less than 1"));
    EXPECT_THAT([&] { ElementwiseOptimizer(ctx, store, AdamW{.beta2 = 2}); },
                testing::ThrowsMessage<Error>("optimizer: beta2: 2; expected 0 or more, less than 1"));
}

/// lr 0.5, decay 0.5, and no moments: the step is 0.5 sign(g), so all numbers are exact in binary.
TEST(Lion, CautiousDecayKeepsWeightsThatTheStepEnlarges) {
    const Context ctx;
    ParameterStore store;
    const Parameter matrix = store.add("matrix", {1, 4}, Init::zeros());
    store.allocate(ctx, DType::f64);
    copy(ctx, matrix.value(), from_host(ctx, std::vector{1.0, 1.0, -2.0, -2.0}, {1, 4}, DType::f64));
    ElementwiseOptimizer optimizer(ctx, store,
                                   Lion{.beta1 = 0, .beta2 = 0, .weight_decay = 0.5, .cautious_decay = true});
    copy(ctx, matrix.grad(), from_host(ctx, std::vector{1.0, -1.0, 1.0, -1.0}, {1, 4}, DType::f64));
    optimizer.step(ctx, 0.5);
    // 0.75 - 0.5; 1 + 0.5; -2 - 0.5; -1.5 + 0.5
    EXPECT_EQ(to_host(ctx, matrix.value()), (std::vector{0.25, 1.5, -2.5, -1.0}));
}

/// The scalar formula with the paper's condition on the sign of update times weight.
TEST(AdamW, CautiousDecayEqualsItsFormulaInFloat64) {
    const Context ctx;
    AdamWProblem problem(ctx, DType::f64);
    AdamW rule = adamw_options;
    rule.cautious_decay = true;
    ElementwiseOptimizer optimizer(ctx, problem.store, rule);
    std::vector<ScalarAdamW> reference;
    for (const double w : to_host(ctx, problem.store.values())) reference.push_back({.w = w});
    for (int t = 1; t <= adamw_steps; ++t) {
        problem.set_gradients(ctx, t);
        optimizer.step(ctx, adamw_lr);
        for (const Parameter& parameter : problem.store.parameters())
            for (std::int64_t i = parameter.offset(); i < parameter.offset() + parameter.shape().elements();
                 ++i) {
                ScalarAdamW& element = reference[static_cast<std::size_t>(i)];
                const double old = element.w, g = AdamWProblem::gradient(i, t);
                element.step(g, adamw_lr, 0.0, adamw_options);
                if (parameter.decays() && (old - element.w) * old >= 0.0)
                    element.w -= adamw_lr * adamw_options.weight_decay * old;
            }
    }
    const std::vector<double> values = to_host(ctx, problem.store.values());
    for (const Parameter& parameter : problem.store.parameters())
        for (std::int64_t i = parameter.offset(); i < parameter.offset() + parameter.shape().elements();
             ++i) {
            const double expected = reference[static_cast<std::size_t>(i)].w;
            ASSERT_NEAR(values[static_cast<std::size_t>(i)], expected,
                        rounding_bound(expected, std::numeric_limits<double>::epsilon()));
        }
}

TEST(AdamW, CanOptimizeAPartOfTheStore) {
    const Context ctx;
    AdamWProblem problem(ctx, DType::f64);
    const std::vector<double> before = to_host(ctx, problem.store.values());
    const std::vector<Parameter> some{problem.store.find("embedding"), problem.store.find("bias")};
    ElementwiseOptimizer optimizer(ctx, problem.store, some, adamw_options);
    problem.set_gradients(ctx, 1);
    optimizer.step(ctx, adamw_lr);
    for (const Parameter& parameter : problem.store.parameters()) {
        const bool chosen = parameter.name() == "embedding" || parameter.name() == "bias";
        const std::vector<double> now = to_host(ctx, parameter.value());
        for (std::size_t i = 0; i < now.size(); ++i)
            EXPECT_EQ(now[i] != before[static_cast<std::size_t>(parameter.offset()) + i], chosen);
    }
}

}  // namespace
}  // namespace gradtile
