// Compares norm, clipping and optimizers on the GPU with the CPU or with a float64 reference.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/cuda/step_graph.h>
#include <gradtile/core/offload_allocator.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/optimizers/global_norm.h>
#include <gradtile/train/optimizers/muon.h>

#include <support/cuda_test.h>
#include <support/floating_dtypes.h>

#include "lion_problem.h"
#include "optimizer_problems.h"

namespace gradtile {
namespace {

using test::adamw_lr;
using test::adamw_options;
using test::adamw_steps;
using test::AdamWProblem;
using test::distance;
using test::epsilon_of;
using test::floating_dtypes;
using test::in_blocks;
using test::muon_lr;
using test::muon_options;
using test::MuonProblem;
using test::normuon_options;
using test::packed_in_blocks;
using test::published_newton_schulz;
using test::reference_norm;

// ---- Norm and clipping ----

using CudaGlobalNorm = test::CudaTest;

/// Lengths near the size of a warp, a thread block and a partial sum, and a length with more partial sums
/// than the second stage has threads. The root of a float64 sum over n squares has a relative error of at
/// most (n + 2) epsilon, for any addition order.
TEST_F(CudaGlobalNorm, EqualsTheLongDoubleSumAtAnyLength) {
    for (const std::int64_t n : {1, 31, 33, 257, 32767, 32768, 32769, 100001, 1030 * 32768 + 7})
        for (const DType dtype : floating_dtypes) {
            if (n > 1000000 && dtype != DType::f32) continue;
            const Tensor x = n > 1000000 ? empty(gpu(), {n}, dtype) : randn(gpu(), {n}, dtype, Seed{7});
            if (n > 1000000) fill(gpu(), x, 1.5);
            const double expected =
                n > 1000000 ? 1.5 * std::sqrt(static_cast<double>(n)) : reference_norm(to_host(gpu(), x));
            const double bound = static_cast<double>(n + 2) * std::numeric_limits<double>::epsilon();
            EXPECT_NEAR(item(gpu(), global_norm(gpu(), x)), expected, expected * bound) << dtype << ' ' << n;
        }
}

TEST_F(CudaGlobalNorm, OfAnEmptyTensorIsZero) {
    EXPECT_EQ(item(gpu(), global_norm(gpu(), empty(gpu(), {0}, DType::f32))), 0.0);
}

TEST_F(CudaGlobalNorm, RepeatsToTheBit) {
    const Tensor x = randn(gpu(), {3000001}, DType::f32, Seed{3});
    const double first = item(gpu(), global_norm(gpu(), x));
    for (int i = 0; i < 5; ++i) EXPECT_EQ(item(gpu(), global_norm(gpu(), x)), first);
}

TEST_F(CudaGlobalNorm, NeitherOverflowsNorUnderflowsInFloat32) {
    for (const double value : {1e38, 1e-38}) {
        const Tensor x = empty(gpu(), {1000}, DType::f32);
        fill(gpu(), x, value);
        const double expected = static_cast<double>(static_cast<float>(value)) * std::sqrt(1000.0);
        EXPECT_NEAR(item(gpu(), global_norm(gpu(), x)), expected,
                    expected * 1002 * std::numeric_limits<double>::epsilon());
    }
}

TEST_F(CudaGlobalNorm, ClippingScalesLongGradientsAndLeavesShortOnes) {
    const Tensor x = from_host(gpu(), std::vector<double>{3.0, 4.0}, {2}, DType::f32);
    EXPECT_EQ(item(gpu(), clip_global_norm(gpu(), x, {.max_norm = 1.0}).scale), 0.2);
    EXPECT_EQ(item(gpu(), clip_global_norm(gpu(), x, {.max_norm = 5.0}).scale), 1.0);
    EXPECT_EQ(item(gpu(), clip_global_norm(gpu(), x).scale), 1.0);
    EXPECT_EQ(item(gpu(), clip_global_norm(gpu(), x).norm), 5.0);
}

TEST_F(CudaGlobalNorm, ClippingRefusesTheUpdateWhenGradientOrLossIsNotFinite) {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const double bad : {infinity, -infinity, std::nan("")})
        for (const DType dtype : floating_dtypes) {
            const Tensor good = from_host(gpu(), std::vector<double>{1.0}, {1}, dtype);
            const Tensor poisoned = from_host(gpu(), std::vector<double>{1.0, bad, 1.0}, {3}, dtype);
            EXPECT_EQ(item(gpu(), clip_global_norm(gpu(), poisoned, {.max_norm = 1.0}).scale), 0.0);
            const Tensor loss = from_host(gpu(), std::vector<double>{bad}, {1}, dtype);
            const ClipOptions with_loss{.max_norm = 1.0, .loss = loss};
            EXPECT_EQ(item(gpu(), clip_global_norm(gpu(), good, with_loss).scale), 0.0);
            EXPECT_EQ(item(gpu(), clip_global_norm(gpu(), good, {.max_norm = 1.0, .loss = good}).scale), 1.0);
        }
}

/// The number is read in each replay, from memory that the host writes.
TEST_F(CudaGlobalNorm, ClippingRefusesTheUpdateAfterAnInterruption) {
    const Tensor x = from_host(gpu(), std::vector<double>{3.0, 4.0}, {2}, DType::f32),
                 interruption =
                     zeros(gpu().with_allocator(offload_allocator(gpu().device())), {1}, DType::f64);
    const Context inside =
        gpu().with_allocator(std::make_shared<Arena>(gpu().device(), std::size_t{1} << 20));
    const Tensor norm = zeros(gpu(), {1}, DType::f64), scale = zeros(gpu(), {1}, DType::f64);
    StepGraph graph;
    graph.capture(inside, [&] {
        const Clip clip = clip_global_norm(inside, x, {.interruption = interruption});
        copy(inside, norm, clip.norm);
        copy(inside, scale, clip.scale);
    });
    for (const double interrupted : {0.0, 1.0, 0.0}) {
        *interruption.data<double>() = interrupted;
        graph.replay(inside);
        EXPECT_EQ(item(gpu(), scale), 1.0 - interrupted);
        EXPECT_EQ(std::isnan(item(gpu(), norm)), interrupted != 0.0);
    }
}

// ---- AdamW ----

using CudaAdamW = test::CudaTest;

/// A weight's largest difference between CPU and GPU: twice one device's rounding error. Each step rounds w
/// twice (after decay and after subtraction), and rounds the update, which is at most lr / sqrt(1 - beta2),
/// about 16 times (see adamw_test.cpp). In float64 the error in beta^t counts, too: on a GPU it is 2 units in
/// the last place, and 1 / (1 - beta^t) multiplies it by up to 100 under the root and up to 10 outside it.
double difference_bound(double weight, DType dtype) {
    const double update = adamw_lr / std::sqrt(1.0 - adamw_options.beta2);
    const double power_error = dtype == DType::f64 ? 2.0 * (100.0 / 2.0 + 10.0) : 0.0;
    return 2.0 * adamw_steps * epsilon_of(accumulator_of(dtype)) *
           (2.0 * (std::abs(weight) + adamw_steps * update) + (16.0 + power_error) * update);
}

/// Expects the same weights on both devices, and on the GPU values that are the rounded masters.
void expect_equal_updates(const Context& gpu, DType dtype, const AdamW& rule,
                          const LearningRateFactor& factor = {}) {
    const Context cpu(Device::cpu(), 2);
    AdamWProblem ours(gpu, dtype), theirs(cpu, dtype);
    ElementwiseOptimizer on_gpu(gpu, ours.store, ours.store.parameters(), rule, {}, factor),
        on_cpu(cpu, theirs.store, theirs.store.parameters(), rule, {}, factor);
    for (int t = 1; t <= adamw_steps; ++t) {
        ours.set_gradients(gpu, t);
        theirs.set_gradients(cpu, t);
        on_gpu.step(gpu, adamw_lr);
        on_cpu.step(cpu, adamw_lr);
    }
    const auto got = to_host(gpu, ours.store.master()), expected = to_host(cpu, theirs.store.master());
    for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], difference_bound(expected[i], dtype)) << dtype << " element " << i;
    EXPECT_EQ(to_host(gpu, ours.store.values()), to_host(gpu, cast(gpu, ours.store.master(), dtype)));
    EXPECT_EQ(item(gpu, on_gpu.state().back().tensor), adamw_steps);
}

TEST_F(CudaAdamW, UpdatesAsTheCpuDoes) {
    for (const DType dtype : floating_dtypes) expect_equal_updates(gpu(), dtype, adamw_options);
}

/// A thread of the first kernel prepares the formula of each rate. Decay is cautious in float64 only: in
/// float32 the devices may disagree about the sign of a step that is almost 0.
TEST_F(CudaAdamW, MultipliesRatesAndDecaysCautiouslyAsTheCpuDoes) {
    const auto factor = [](const Parameter& parameter) {
        return parameter.name() == "embedding" ? 1.0 : parameter.decays() ? 0.5 : 0.25;
    };
    AdamW rule = adamw_options;
    for (const DType dtype : floating_dtypes) {
        rule.cautious_decay = dtype == DType::f64;
        expect_equal_updates(gpu(), dtype, rule, factor);
    }
}

TEST_F(CudaAdamW, ChangesNothingWhenTheUpdateIsRefused) {
    AdamWProblem problem(gpu(), DType::bf16);
    ElementwiseOptimizer optimizer(gpu(), problem.store, adamw_options);
    test::expect_a_refused_update_changes_nothing(gpu(), problem, optimizer, adamw_lr);
}

TEST_F(CudaAdamW, CanOptimizeAPartOfTheStore) {
    AdamWProblem problem(gpu(), DType::f32);
    const std::vector<double> before = to_host(gpu(), problem.store.values());
    const std::vector<Parameter> some{problem.store.find("embedding"), problem.store.find("bias")};
    ElementwiseOptimizer optimizer(gpu(), problem.store, some, adamw_options);
    problem.set_gradients(gpu(), 1);
    optimizer.step(gpu(), adamw_lr);
    for (const Parameter& parameter : problem.store.parameters()) {
        const bool chosen = parameter.name() == "embedding" || parameter.name() == "bias";
        const std::vector<double> now = to_host(gpu(), parameter.value());
        for (std::size_t i = 0; i < now.size(); ++i)
            EXPECT_EQ(now[i] != before[static_cast<std::size_t>(parameter.offset()) + i], chosen);
    }
}

/// The rate and the update count are in device memory, so a replayed step uses and advances them like a step
/// without a graph.
TEST_F(CudaAdamW, ReplayedFromAGraphEqualsEagerToTheBit) {
    AdamWProblem eager(gpu(), DType::bf16), replayed(gpu(), DType::bf16);
    ElementwiseOptimizer first(gpu(), eager.store, adamw_options),
        second(gpu(), replayed.store, adamw_options);
    const Tensor rate = zeros(gpu(), {1}, DType::f64);
    const auto step = [&](Optimizer& optimizer, AdamWProblem& problem) {
        const Context inside = gpu().with_allocator(std::make_shared<Arena>(gpu().device(), 1 << 20));
        const Clip clip = clip_global_norm(inside, problem.store.gradients(), {.max_norm = 1.0});
        optimizer.step(inside, rate, {.gradient_scale = clip.scale});
    };
    const auto arena = std::make_shared<Arena>(gpu().device(), 1 << 20);
    const Context inside = gpu().with_allocator(arena);
    StepGraph graph;
    graph.capture(inside, [&] {
        const Clip clip = clip_global_norm(inside, replayed.store.gradients(), {.max_norm = 1.0});
        second.step(inside, rate, {.gradient_scale = clip.scale});
    });
    EXPECT_EQ(graph.nodes(), 5u);  // two kernels for the norm, one for the clipping factor, two for AdamW
    for (int t = 1; t <= 5; ++t) {
        fill(gpu(), rate, adamw_lr / t);
        eager.set_gradients(gpu(), t);
        replayed.set_gradients(gpu(), t);
        step(first, eager);
        graph.replay(inside);
        EXPECT_EQ(to_host(gpu(), replayed.store.master()), to_host(gpu(), eager.store.master())) << t;
    }
}

// ---- Lion ----

using CudaLion = test::CudaTest;

TEST_F(CudaLion, EqualsItsFormula) {
    for (const DType dtype : floating_dtypes) test::expect_equal_to_scalar_lion(gpu(), dtype);
}

// ---- Muon ----

using CudaMuon = test::CudaTest;

/// The second problem's matrices are packed, and rows are divided by their second moments. The rows of these
/// random matrices have almost equal lengths, so that a row's factor is less than twice their mean.
TEST_F(CudaMuon, UpdatesAsTheCpuDoes) {
    constexpr int updates = 3;
    struct Variation {
        MuonOptions options;
        std::vector<std::int64_t> (*rows)(const Parameter&);
        double slope;   // of the quintics, at most
        double factor;  // on the rate of a matrix, at most
    };
    for (const Variation& variation :
         {Variation{muon_options, in_blocks, 500.0, 2.0},
          Variation{normuon_options, packed_in_blocks, 967.0, 2.0 * 0.2 * std::sqrt(32.0)}})
        for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
            MuonProblem ours(gpu(), dtype), theirs(cpu, dtype);
            Muon on_gpu(gpu(), ours.store, variation.rows, variation.options),
                on_cpu(cpu, theirs.store, variation.rows, variation.options);
            for (std::uint64_t t = 1; t <= updates; ++t) {
                ours.set_gradients(gpu(), t);
                theirs.set_gradients(cpu, t);
                on_gpu.step(gpu(), muon_lr);
                on_cpu.step(cpu, muon_lr);
            }
            // On each device, the orthogonalised update's error is the rounding in 5 steps with 3 products
            // each of up to 32 terms, times the quintics' slope, times the matrix's rate. Subtracting the
            // update from the weight rounds once more.
            const double orthogonal = variation.slope * 5 * 3 * 32 * epsilon_of(accumulator_of(dtype));
            const double bound =
                2.0 * updates *
                (variation.factor * variation.options.matrix.lr_ratio * muon_lr * orthogonal +
                 4.0 * epsilon_of(accumulator_of(dtype)));
            for (const char* name : {"blocks.0.tall", "blocks.0.wide", "blocks.1.tall"}) {
                const auto got = to_host(gpu(), ours.store.master_of(ours.store.find(name)));
                const auto expected = to_host(cpu, theirs.store.master_of(theirs.store.find(name)));
                for (std::size_t i = 0; i < got.size(); ++i)
                    ASSERT_NEAR(got[i], expected[i], bound) << dtype << ' ' << name << ' ' << i;
            }
            EXPECT_EQ(to_host(gpu(), ours.store.values()),
                      to_host(gpu(), cast(gpu(), ours.store.master(), dtype)));
        }
}

TEST_F(CudaMuon, ChangesNothingWhenTheUpdateIsRefused) {
    for (const MuonOptions& options : {muon_options, normuon_options}) {
        MuonProblem problem(gpu(), DType::bf16);
        Muon optimizer(gpu(), problem.store, in_blocks, options);
        test::expect_a_refused_update_changes_nothing(gpu(), problem, optimizer, muon_lr);
    }
}

TEST_F(CudaMuon, NewtonSchulzOfZeroIsZero) {
    for (const DType products : {DType::f32, DType::bf16}) {
        const Tensor x = zeros(gpu(), {4, 8}, DType::f32);
        newton_schulz(gpu(), x, products);
        EXPECT_THAT(to_host(gpu(), x), testing::Each(0.0));
    }
}

/// Odd sizes, and a matrix with more elements than a grid has threads.
TEST_F(CudaMuon, NewtonSchulzInBfloat16IsAsAccurateAsPublished) {
    for (const Shape& shape : {Shape{96, 96}, Shape{129, 67}, Shape{48, 192}, Shape{768, 256},
                               Shape{264, 520}, Shape{392, 392}, Shape{301, 137}}) {
        const Tensor x = randn(cpu, shape, DType::f32, Seed{1});
        const Tensor exact = cast(cpu, x, DType::f64), ours = to_device(gpu(), x);
        newton_schulz(cpu, exact, DType::f64);
        newton_schulz(gpu(), ours, DType::bf16);
        const Tensor on_host = from_host(cpu, to_host(gpu(), ours), shape, DType::f32);
        EXPECT_LE(distance(cpu, on_host, exact), distance(cpu, published_newton_schulz(cpu, x), exact))
            << shape;
    }
}

TEST_F(CudaMuon, OrthogonalizesAStackLikeSeparateMatrices) {
    for (const Shape& shape : {Shape{12, 64, 192}, Shape{12, 192, 64}, Shape{70, 33, 17}}) {
        const Tensor stack = randn(gpu(), shape, DType::f64, Seed{3}),
                     separate = cast(gpu(), stack, DType::f64);
        newton_schulz(gpu(), stack, DType::f64);
        for (std::int64_t i = 0; i < shape[0]; ++i) newton_schulz(gpu(), separate.select(0, i), DType::f64);
        const std::vector<double> together = to_host(gpu(), stack), alone = to_host(gpu(), separate);
        // Same bound as in NewtonSchulz.OrthogonalizesAStackLikeSeparateMatrices.
        const double bound = 500.0 * 5 * 3 * 192 * std::numeric_limits<double>::epsilon();
        for (std::size_t i = 0; i < together.size(); ++i) ASSERT_NEAR(together[i], alone[i], bound) << i;
    }
}

TEST_F(CudaMuon, MultipliesBfloat16ByDefault) {
    EXPECT_EQ(newton_schulz_dtype(gpu()), DType::bf16);
    std::vector<std::vector<double>> masters;
    for (const std::optional<DType> products : {std::optional<DType>{}, {DType::bf16}, {DType::f32}}) {
        MuonProblem problem(gpu(), DType::bf16);
        MuonOptions options = muon_options;
        options.newton_schulz = products;
        Muon optimizer(gpu(), problem.store, in_blocks, options);
        problem.set_gradients(gpu(), 1);
        optimizer.step(gpu(), muon_lr);
        masters.push_back(to_host(gpu(), problem.store.master()));
    }
    EXPECT_EQ(masters[0], masters[1]);
    EXPECT_NE(masters[0], masters[2]);
}

}  // namespace
}  // namespace gradtile
