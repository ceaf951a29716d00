#pragma once
/// Finite differences over a model's parameters, for layers that own some.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/parameter_store.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::testing {

/// Compares x's accumulated gradient `analytic` with central differences of loss() over x's elements (at most
/// `samples` of them, spread evenly). x is float64, contiguous, on the CPU, and restored.
///
/// The bound is derived per element. D(h) differs from the derivative by a truncation error that grows as
/// h^2, so that |D(2h) - D(h)| is three times that of D(h), and by the rounding of loss(), taken as 64 units
/// in the last place, divided by h.
template <class Loss>
void expect_gradient(const std::string& name, const Tensor& x, const std::vector<double>& analytic,
                     Loss&& loss, std::int64_t samples = 24) {
    constexpr double h = 1e-4;
    double* values = x.data<double>();
    const std::int64_t count = x.elements();
    const std::int64_t step = std::max<std::int64_t>(1, count / samples);
    for (std::int64_t i = 0; i < count; i += step) {
        const double value = values[i];
        double largest_loss = 0.0;
        const auto difference = [&](double distance) {
            values[i] = value + distance;
            const double above = loss();
            values[i] = value - distance;
            const double below = loss();
            values[i] = value;
            largest_loss = std::max({largest_loss, std::abs(above), std::abs(below)});
            return (above - below) / (2.0 * distance);
        };
        const double near = difference(h), far = difference(2.0 * h);
        const double rounding = 64.0 * std::numeric_limits<double>::epsilon() * largest_loss / h;
        ASSERT_NEAR(analytic[static_cast<std::size_t>(i)], near, std::abs(far - near) + rounding)
            << name << ", element " << i << " of " << count;
    }
}

/// Checks every parameter's gradient. gradients() must accumulate them for the same scalar that loss()
/// returns.
template <class Loss, class Gradients>
void expect_parameter_gradients(const Context& ctx, const ParameterStore& parameters, Loss&& loss,
                                Gradients&& gradients) {
    parameters.zero_gradients(ctx);
    gradients();
    std::vector<std::vector<double>> analytic;
    for (const Parameter& parameter : parameters.parameters())
        analytic.push_back(to_host(ctx, parameter.grad()));
    std::size_t index = 0;
    for (const Parameter& parameter : parameters.parameters()) {
        expect_gradient(parameter.name(), parameter.value(), analytic[index++], loss);
        if (::testing::Test::HasFatalFailure()) return;
    }
}

/// sum_i weights_i y_i: the scalar whose gradient by y is `weights`.
inline double weighted_sum(const Context& ctx, const Tensor& y, const Tensor& weights) {
    const std::vector<double> a = to_host(ctx, y), b = to_host(ctx, weights);
    double sum = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

}  // namespace gradtile::testing
