// Optimizers whose gradients are kept in bfloat16, on CPU and GPU.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include <gradtile/core/internal/master_weights.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/optimizers/muon.h>

#include <support/cuda_test.h>

#include "optimizer_problems.h"

namespace gradtile {
namespace {

using test::AdamWProblem;
using test::MuonProblem;

template <class Problem>
using MakeOptimizer = std::unique_ptr<Optimizer> (*)(const Context&, const Problem&, const OptimizerShard&);

/// The weights that an optimizer updates.
std::vector<double> weights_of(const Context& ctx, const ParameterStore& store, const OptimizerShard& shard) {
    if (!shard.masters.defined() || shard.masters.dtype() == DType::f32)
        return to_host(ctx, shard.masters.defined() ? shard.masters : store.values());
    const Tensor joined = empty(ctx, {store.flat_elements()}, DType::f32);
    join_masters(ctx, store.values(), shard.masters, joined);
    return to_host(ctx, joined);
}

/// Updates a store from gradients in bfloat16, and another one from the same numbers in float32, `steps`
/// times.
template <class Problem>
void expect_equal_updates(const Context& ctx, DType dtype, MasterFormat masters, double lr, int steps,
                          MakeOptimizer<Problem> make) {
    Problem kept(ctx, dtype), wide(ctx, dtype);
    const std::int64_t n = kept.store.flat_elements();
    OptimizerShard of_kept = whole_of(kept.store), of_wide = whole_of(wide.store);
    of_kept.gradients = zeros(ctx, {n}, DType::bf16);
    if (masters == MasterFormat::split)
        for (auto [shard, problem] : {std::pair{&of_kept, &kept}, {&of_wide, &wide}}) {
            shard->masters = zeros(ctx, {n / remainders_per_word}, DType::i32);
            split_masters(ctx, problem->store.master(), shard->masters);
        }
    const std::unique_ptr<Optimizer> optimizer = make(ctx, kept, of_kept),
                                     reference = make(ctx, wide, of_wide);
    for (int t = 1; t <= steps; ++t) {
        wide.set_gradients(ctx, static_cast<std::uint64_t>(t));
        copy(ctx, of_kept.gradients, wide.store.gradients());
        copy(ctx, wide.store.gradients(), of_kept.gradients);
        const Tensor scale = from_host(ctx, std::vector<double>{0.75}, {1}, DType::f64);
        optimizer->step(ctx, lr, {.gradient_scale = scale});
        reference->step(ctx, lr, {.gradient_scale = scale});
        ASSERT_EQ(weights_of(ctx, kept.store, of_kept), weights_of(ctx, wide.store, of_wide)) << t;
    }
    const auto state = optimizer->state(), expected = reference->state();
    ASSERT_EQ(state.size(), expected.size());
    for (std::size_t i = 0; i < state.size(); ++i) {
        EXPECT_EQ(state[i].tensor.dtype(), expected[i].tensor.dtype()) << state[i].name;
        EXPECT_EQ(to_host(ctx, state[i].tensor), to_host(ctx, expected[i].tensor)) << state[i].name;
    }
    // An update that is refused reads no gradient.
    const auto before = weights_of(ctx, kept.store, of_kept);
    fill(ctx, of_kept.gradients, INFINITY);
    optimizer->step(ctx, lr, {.gradient_scale = zeros(ctx, {1}, DType::f64)});
    EXPECT_EQ(weights_of(ctx, kept.store, of_kept), before);
}

template <MomentFormat format>
constexpr MomentStorage storage{.format = format, .seed = Seed{17}};

template <MomentFormat format>
void expect_equal_updates_of_every_optimizer(const Context& ctx, DType dtype, MasterFormat masters) {
    SCOPED_TRACE(testing::Message() << name_of(format) << " moments of " << dtype << " values, masters "
                                    << name_of(masters));
    // A moment is a sum of two products, and nvcc chooses anew for each kernel which of them it fuses with
    // the sum. In the first step one of them is 0.
    const int steps = ctx.device().is_cuda() ? 1 : 5;
    expect_equal_updates<AdamWProblem>(
        ctx, dtype, masters, test::adamw_lr, steps,
        [](const Context& c, const AdamWProblem& p, const OptimizerShard& shard) {
            return std::unique_ptr<Optimizer>(
                std::make_unique<ElementwiseOptimizer>(c, p.store, p.store.parameters(), test::adamw_options,
                                                       shard, LearningRateFactor(), storage<format>));
        });
    expect_equal_updates<AdamWProblem>(
        ctx, dtype, masters, 1e-3, steps,
        [](const Context& c, const AdamWProblem& p, const OptimizerShard& shard) {
            return std::unique_ptr<Optimizer>(std::make_unique<ElementwiseOptimizer>(
                c, p.store, p.store.parameters(), Lion{.weight_decay = 0.1, .cautious_decay = true}, shard,
                LearningRateFactor(), storage<format>));
        });
    expect_equal_updates<MuonProblem>(
        ctx, dtype, masters, test::muon_lr, steps,
        [](const Context& c, const MuonProblem& p, const OptimizerShard& shard) {
            MuonOptions options = test::normuon_options;
            options.matrix.moments = storage<format>;
            return std::unique_ptr<Optimizer>(
                std::make_unique<Muon>(c, p.store, test::packed_in_blocks, options, shard));
        });
}

void expect_equal_updates_of_every_format(const Context& ctx) {
    for (const auto& [dtype, masters] : {std::pair{DType::f32, MasterFormat::f32},
                                         {DType::bf16, MasterFormat::f32},
                                         {DType::bf16, MasterFormat::split}}) {
        expect_equal_updates_of_every_optimizer<MomentFormat::f32>(ctx, dtype, masters);
        expect_equal_updates_of_every_optimizer<MomentFormat::bf16>(ctx, dtype, masters);
        expect_equal_updates_of_every_optimizer<MomentFormat::int8>(ctx, dtype, masters);
    }
}

TEST(GradientDType, UpdatesReadTheNumbersThatBfloat16Holds) {
    for (const int threads : {1, 3}) expect_equal_updates_of_every_format(Context(Device::cpu(), threads));
}

/// Rounded gradients are g (1 + d) with |d| <= u = 2^-8. With a the decayed mean of |g|, the first moment m
/// differs by at most u a, and the root of the second moment v by a factor between 1 - u and 1 + u. So a step
/// lr m / (sqrt(v) + e) differs by at most lr u (a + |m|) / (sqrt(v) (1 - u)), and the masters by the sum of
/// these over all steps. A step in float32 has less than 256 roundings of at most 2^-24, with those of the
/// moments that it decays, and rounds its master once. Weight decay is off.
TEST(GradientDType, MastersDifferByNoMoreThanTheRoundingOfTheirGradients) {
    const Context ctx(Device::cpu(), 1);
    constexpr AdamW rule{.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-12, .weight_decay = 0.0};
    constexpr double lr = 1e-3, u = 0x1p-8;
    constexpr int steps = 30;
    AdamWProblem exact(ctx, DType::bf16), rounded(ctx, DType::bf16);
    OptimizerShard shard = whole_of(rounded.store);
    shard.gradients = zeros(ctx, {rounded.store.flat_elements()}, DType::bf16);
    ElementwiseOptimizer of_exact(ctx, exact.store, rule),
        of_rounded(ctx, rounded.store, rounded.store.parameters(), rule, shard);
    const auto n = static_cast<std::size_t>(exact.store.flat_elements());
    std::vector<double> m(n), a(n), v(n), bound(n), largest(n);
    for (int t = 1; t <= steps; ++t) {
        exact.set_gradients(ctx, t);
        copy(ctx, shard.gradients, exact.store.gradients());
        of_exact.step(ctx, lr);
        of_rounded.step(ctx, lr);
        const std::vector<double> gradients = to_host(ctx, exact.store.gradients()),
                                  masters = to_host(ctx, exact.store.master());
        const double of_m = 1.0 - std::pow(rule.beta1, t), of_v = 1.0 - std::pow(rule.beta2, t);
        for (std::size_t i = 0; i < n; ++i) {
            const double g = gradients[i];
            m[i] += (1.0 - rule.beta1) * (g - m[i]);
            a[i] += (1.0 - rule.beta1) * (std::abs(g) - a[i]);
            v[i] += (1.0 - rule.beta2) * (g * g - v[i]);
            largest[i] = std::max(largest[i], std::abs(masters[i]));
            if (v[i] == 0.0) continue;  // padding
            const double root = std::sqrt(v[i] / of_v) * (1.0 - u);
            bound[i] += lr * (u + 0x1p-16) * (a[i] + std::abs(m[i])) / of_m / root + 2 * 0x1p-24 * largest[i];
        }
    }
    const std::vector<double> theirs = to_host(ctx, exact.store.master()),
                              ours = to_host(ctx, rounded.store.master());
    double difference = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
        EXPECT_NEAR(ours[i], theirs[i], bound[i]) << i;
        difference = std::max(difference, std::abs(ours[i] - theirs[i]));
    }
    EXPECT_GT(difference, 0.0);
}

using CudaGradientDType = test::CudaTest;

TEST_F(CudaGradientDType, UpdatesReadTheNumbersThatBfloat16Holds) {
    expect_equal_updates_of_every_format(gpu());
}

}  // namespace
}  // namespace gradtile
