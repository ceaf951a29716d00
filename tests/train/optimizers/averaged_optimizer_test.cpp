#include <gradtile/train/optimizers/averaged_optimizer.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <gradtile/train/optimizers/elementwise_optimizer.h>

#include <support/cuda_test.h>

#include "optimizer_problems.h"

namespace gradtile {
namespace {

using test::adamw_lr;
using test::adamw_options;
using test::AdamWProblem;

constexpr double decay = 0.75;  // the average is the plain mean of four updates

std::unique_ptr<AveragedOptimizer> averaged(const Context& ctx, const ParameterStore& store,
                                            const std::optional<OptimizerShard>& shard = {}) {
    return std::make_unique<AveragedOptimizer>(
        ctx, store,
        std::make_unique<ElementwiseOptimizer>(ctx, store, store.parameters(), adamw_options, shard), decay,
        shard);
}

/// Each of the `steps` additions rounds a product, a difference and a sum of numbers below the largest
/// weight.
double rounding_bound(const std::vector<double>& weights, int steps, DType dtype) {
    double largest = 0.0;
    for (const double weight : weights) largest = std::max(largest, std::abs(weight));
    const double unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
    return 4.0 * steps * unit * largest;
}

void expect_equal_to_the_formula(const Context& ctx, DType dtype) {
    SCOPED_TRACE(dtype);
    constexpr int steps = 10;
    AdamWProblem problem(ctx, dtype);
    const auto optimizer = averaged(ctx, problem.store);
    std::vector<double> expected(static_cast<std::size_t>(problem.store.flat_elements()), 0.0), weights;
    for (int t = 1; t <= steps; ++t) {
        problem.set_gradients(ctx, t);
        optimizer->step(ctx, adamw_lr);
        weights = to_host(ctx, problem.store.master());
        const double share = std::max(1.0 / t, 1.0 - decay);
        for (std::size_t i = 0; i < weights.size(); ++i) expected[i] += share * (weights[i] - expected[i]);
    }
    ASSERT_TRUE(optimizer->exchange_average(ctx));
    const std::vector<double> average = to_host(ctx, problem.store.master());
    const double bound = rounding_bound(weights, steps, dtype);
    for (std::size_t i = 0; i < average.size(); ++i) ASSERT_NEAR(average[i], expected[i], bound) << i;
    ASSERT_TRUE(optimizer->exchange_average(ctx));
    EXPECT_EQ(to_host(ctx, problem.store.master()), weights);
}

TEST(AveragedOptimizer, KeepsTheMovingAverageOfTheWeights) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
        expect_equal_to_the_formula(Context(), dtype);
}
using CudaAveragedOptimizer = test::CudaTest;
TEST_F(CudaAveragedOptimizer, KeepsTheMovingAverageOfTheWeights) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) expect_equal_to_the_formula(gpu(), dtype);
}

/// The values are what a step would have rounded from the masters.
TEST(AveragedOptimizer, ExchangesThe16BitValuesToo) {
    const Context ctx;
    AdamWProblem problem(ctx, DType::bf16);
    const auto optimizer = averaged(ctx, problem.store);
    for (int t = 1; t <= 3; ++t) {
        problem.set_gradients(ctx, t);
        optimizer->step(ctx, adamw_lr);
    }
    const std::vector<double> values = to_host(ctx, problem.store.values());
    ASSERT_TRUE(optimizer->exchange_average(ctx));
    EXPECT_NE(to_host(ctx, problem.store.values()), values);
    EXPECT_EQ(to_host(ctx, problem.store.values()),
              to_host(ctx, cast(ctx, problem.store.master(), DType::bf16)));
    ASSERT_TRUE(optimizer->exchange_average(ctx));
    EXPECT_EQ(to_host(ctx, problem.store.values()), values);
}

void expect_refused_updates_are_not_averaged(const Context& ctx) {
    AdamWProblem problem(ctx, DType::f32);
    const auto optimizer = averaged(ctx, problem.store);
    const Tensor refusal = zeros(ctx, {1}, DType::f64);
    problem.set_gradients(ctx, 1);
    optimizer->step(ctx, adamw_lr, {.gradient_scale = refusal});
    EXPECT_FALSE(optimizer->exchange_average(ctx)) << "nothing was averaged";
    optimizer->step(ctx, adamw_lr);
    const std::vector<double> weights = to_host(ctx, problem.store.values());
    optimizer->step(ctx, adamw_lr, {.gradient_scale = refusal});
    ASSERT_TRUE(optimizer->exchange_average(ctx));
    EXPECT_EQ(to_host(ctx, problem.store.values()), weights) << "the mean of one update";
}

TEST(AveragedOptimizer, DoesNotAverageRefusedUpdates) {
    expect_refused_updates_are_not_averaged(Context());
}
TEST_F(CudaAveragedOptimizer, DoesNotAverageRefusedUpdates) {
    expect_refused_updates_are_not_averaged(gpu());
}

TEST(AveragedOptimizer, NamesItsStateAfterTheOptimizersState) {
    const Context ctx;
    AdamWProblem problem(ctx, DType::f32);
    std::vector<std::string> names, expected;
    for (const StateTensor& part : ElementwiseOptimizer(ctx, problem.store, adamw_options).state())
        expected.push_back(part.name);
    for (const Parameter& parameter : problem.store.parameters())
        expected.push_back("average/" + parameter.name());
    expected.push_back("average_updates");
    for (const StateTensor& part : averaged(ctx, problem.store)->state()) names.push_back(part.name);
    EXPECT_EQ(names, expected);
}

/// A shard of two ranges, of which one begins inside a parameter.
TEST(AveragedOptimizer, AveragesAShardAsTheWholeStore) {
    const Context ctx;
    for (const DType dtype : {DType::f32, DType::bf16}) {
        AdamWProblem full(ctx, dtype), part(ctx, dtype);
        OptimizerShard shard{.ranges = {{64, 320}, {1024, 4096}},
                             .gradients = zeros(ctx, {4416}, DType::f32)};
        const auto packed = [&](const Tensor& flat, const Tensor& destination) {
            copy(ctx, destination.slice(0, 0, 320), flat.slice(0, 64, 320));
            copy(ctx, destination.slice(0, 320, 4096), flat.slice(0, 1024, 4096));
        };
        if (dtype == DType::bf16) {
            shard.masters = zeros(ctx, {4416}, DType::f32);
            packed(part.store.master(), shard.masters);
        }
        const auto of_all = averaged(ctx, full.store), of_shard = averaged(ctx, part.store, shard);
        for (int t = 1; t <= 6; ++t) {
            full.set_gradients(ctx, t);
            packed(full.store.gradients(), shard.gradients);
            of_all->step(ctx, adamw_lr);
            of_shard->step(ctx, adamw_lr);
        }
        ASSERT_TRUE(of_all->exchange_average(ctx));
        ASSERT_TRUE(of_shard->exchange_average(ctx));
        for (const FlatRange& range : shard.ranges)
            EXPECT_EQ(to_host(ctx, part.store.values().slice(0, range.begin, range.length)),
                      to_host(ctx, full.store.values().slice(0, range.begin, range.length)))
                << dtype;
    }
}

}  // namespace
}  // namespace gradtile
