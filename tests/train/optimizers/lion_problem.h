#pragma once
/// Compares Lion with a float64 reference, on CPU and GPU.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <gradtile/train/optimizers/elementwise_optimizer.h>

#include "optimizer_problems.h"

namespace gradtile::test {

inline constexpr Lion lion_rule{.beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};
inline constexpr double lion_lr = 1e-3;
inline constexpr int lion_steps = 20;

/// The published formula for one element, in float64.
struct ScalarLion {
    double w, m = 0.0;
    double largest_gradient = 0.0;
    double smallest_direction = std::numeric_limits<double>::infinity();

    void step(double g, double decay) {
        const double direction = lion_rule.beta1 * m + (1.0 - lion_rule.beta1) * g;
        w = (1.0 - lion_lr * decay) * w -
            lion_lr * static_cast<double>((direction > 0.0) - (direction < 0.0));
        m = lion_rule.beta2 * m + (1.0 - lion_rule.beta2) * g;
        largest_gradient = std::max(largest_gradient, std::abs(g));
        smallest_direction = std::min(smallest_direction, std::abs(direction));
    }
    /// Returns false if some step's direction is so close to 0 that rounding may change its sign. The
    /// momentum, which is at most the largest gradient, has 4 roundings per step, and the direction has 4
    /// more.
    bool has_certain_signs(double epsilon) const {
        return smallest_direction > 4.0 * (lion_steps + 1) * epsilon * largest_gradient;
    }
};

/// The bound: each step rounds w twice (after decay and after subtraction), and lr once.
inline void expect_equal_to_scalar_lion(const Context& ctx, DType dtype) {
    AdamWProblem problem(ctx, dtype);
    ParameterStore& store = problem.store;
    std::vector<ScalarLion> reference;
    for (const double w : to_host(ctx, store.master())) reference.push_back({.w = w});
    ElementwiseOptimizer optimizer(ctx, store, lion_rule);
    for (int t = 1; t <= lion_steps; ++t) {
        problem.set_gradients(ctx, t);
        optimizer.step(ctx, lion_lr);
        for (const Parameter& parameter : store.parameters())
            for (std::int64_t i = parameter.offset(); i < parameter.offset() + parameter.shape().elements();
                 ++i)
                reference[static_cast<std::size_t>(i)].step(
                    AdamWProblem::gradient(i, t), parameter.decays() ? lion_rule.weight_decay : 0.0);
    }
    const double epsilon = accumulator_of(dtype) == DType::f64 ? std::numeric_limits<double>::epsilon()
                                                               : std::numeric_limits<float>::epsilon();
    const std::vector<double> master = to_host(ctx, store.master());
    std::size_t uncertain = 0;
    for (const Parameter& parameter : store.parameters())
        for (std::int64_t i = parameter.offset(); i < parameter.offset() + parameter.shape().elements();
             ++i) {
            const ScalarLion& expected = reference[static_cast<std::size_t>(i)];
            if (!expected.has_certain_signs(epsilon)) {
                ++uncertain;
                continue;
            }
            const double bound =
                lion_steps * epsilon * (2.0 * (std::abs(expected.w) + lion_steps * lion_lr) + lion_lr);
            ASSERT_NEAR(master[static_cast<std::size_t>(i)], expected.w, bound) << dtype << " element " << i;
        }
    EXPECT_LE(uncertain, master.size() / 100);
    EXPECT_EQ(to_host(ctx, store.values()), to_host(ctx, cast(ctx, store.master(), dtype)));
}

}  // namespace gradtile::test
