#include <gradtile/tools/plan/cost_model.h>

#include <gtest/gtest.h>

#include <gradtile/layers/transformer/transformer.h>

namespace gradtile {
namespace {

constexpr Link network{.bytes_per_second = 45e9, .latency = 15e-6};

TrainConfig config_of(bool zero, std::int64_t share = 8, std::int64_t gpus = 1) {
    TrainConfig config = preset("gpt2-124m");
    config.dtype = TrainDType::bf16;
    config.batch = share * gpus;
    config.micro_batch = share;
    config.zero = zero ? 1 : 0;
    return config;
}

ParallelStep step_of(bool zero = false) {
    return parallel_step(config_of(zero), 1);
}

StepCost cost_on(std::int64_t gpus, const ParallelStep& step,
                 const CostConstants& constants = h200_constants(), std::int64_t per_node = 8) {
    return step_cost(step, constants, GpuLayout(gpus, per_node),
                     {.nvlink = constants.nvlink(), .network = network});
}

double flat_elements() {
    return step_of().elements();
}

TEST(CostModel, BucketsHoldTheFlatBlocksInOrder) {
    for (const char* name : {"gpt2-124m", "gpt2-774m"}) {
        TrainConfig config = preset(name);
        ParameterStore parameters;
        const Transformer transformer(config.model, parameters);
        const ParallelStep step = parallel_step(config, 1);
        EXPECT_EQ(step.elements(), static_cast<double>(parameters.flat_elements()));
        EXPECT_EQ(step.buckets.front().stage, 0u);
        for (std::size_t i = 1; i < step.buckets.size(); ++i)
            EXPECT_GE(step.buckets[i].stage, step.buckets[i - 1].stage);
        EXPECT_LE(step.buckets.back().stage, static_cast<std::size_t>(config.model.layers) + 1);
        EXPECT_GE(step.buckets.size(), static_cast<std::size_t>(config.model.layers) / 2);
    }
}

TEST(CostModel, OneGpuCommunicatesNothing) {
    for (const bool zero : {false, true}) {
        const StepCost cost = cost_on(1, step_of(zero));
        EXPECT_EQ(cost.wire.total(), 0);
        EXPECT_EQ(cost.exposed, 0);
        EXPECT_GT(cost.compute, cost.update);
    }
}

/// A ring all-reduces float32 gradients. With ZeRO-1, gradients are reduce-scattered, and two-byte values are
/// gathered.
TEST(CostModel, BytesOnTheWireAreThoseOfGradientsAndValues) {
    for (const std::int64_t gpus : {2, 4, 64}) {
        const auto n = static_cast<double>(gpus);
        const double part = (n - 1) / n * flat_elements();
        EXPECT_NEAR(cost_on(gpus, step_of(false)).wire.total(), 2 * 4 * part, 1e-9 * part);
        EXPECT_NEAR(cost_on(gpus, step_of(true)).wire.total(), (4 + 2) * part, 1e-9 * part);
    }
}

/// ZeRO-2 sums every micro-step's gradients, ZeRO-1 those of a step.
TEST(CostModel, ZeroTwoReducesTheGradientsOfEachMicroStep) {
    for (const std::int64_t gpus : {2, 4, 64}) {
        const auto n = static_cast<double>(gpus);
        const double part = (n - 1) / n * flat_elements();
        for (const int micro_steps : {1, 3}) {
            TrainConfig config = config_of(true, 8 * micro_steps);
            config.micro_batch = 8;
            const StepCost one = cost_on(gpus, parallel_step(config, 1));
            config.zero = 2;
            const StepCost two = cost_on(gpus, parallel_step(config, 1));
            EXPECT_NEAR(one.wire.total(), (4 + 2) * part, 1e-9 * part);
            EXPECT_NEAR(two.wire.total(), (4 * micro_steps + 2) * part, 1e-9 * part);
            EXPECT_NEAR(two.compute, one.compute, 1e-9 * one.compute);
            EXPECT_EQ(two.update, one.update);
            if (micro_steps > 1) {
                EXPECT_GT(two.exposed, one.exposed);
            }
        }
    }
}

/// ZeRO-3 gathers all values in the first forward pass, and later what is not still there: not the last block
/// in backward passes, and in later forward passes neither the first block nor the embedding, which the tied
/// head reads, too. Some gathers are always exposed: the first ones.
TEST(CostModel, ZeroThreeGathersInEveryPass) {
    const double block = 12 * 768 * 768 + 13 * 768, embedding = 50304 * 768, all = flat_elements();
    for (const std::int64_t gpus : {2, 4, 64}) {
        const auto n = static_cast<double>(gpus);
        for (const int micro_steps : {1, 3}) {
            TrainConfig config = config_of(true, 8 * micro_steps);
            config.micro_batch = 8;
            config.zero = 2;
            const StepCost two = cost_on(gpus, parallel_step(config, 1));
            config.zero = 3;
            const ParallelStep step = parallel_step(config, 1);
            const StepCost three = cost_on(gpus, step);
            const double gathered =
                all + (micro_steps - 1) * (all - block - embedding) + micro_steps * 11 * block;
            const double sent = 4 * micro_steps * all + 2 * gathered;
            EXPECT_NEAR(three.wire.total(), (n - 1) / n * sent, 1e-9 * sent);
            EXPECT_NEAR(three.compute, two.compute, 1e-9 * two.compute);
            EXPECT_EQ(three.update, two.update);
            EXPECT_GT(three.exposed, 0);
            EXPECT_EQ(cost_on(1, step).wire.total(), 0);
        }
    }
}

/// Every process sums the gradients of Muon's matrices, and the owners broadcast the values.
TEST(CostModel, ZeroWithMuonSumsBlocksInEveryProcess) {
    TrainConfig config = config_of(true);
    config.optimizer = kind_of<MuonSettings>;
    for (const std::int64_t gpus : {2, 4, 8}) {
        config.batch = 8 * gpus;
        const ParallelStep step = parallel_step(config, gpus);
        double matrix_elements = 0, cut = 0;
        for (const ParameterBucket& bucket : step.buckets)
            (bucket.equal_parts ? cut : matrix_elements) += bucket.elements;
        EXPECT_GE(matrix_elements, 12.0 * 12 * 768 * 768);
        EXPECT_GE(cut, 50304.0 * 768);
        const auto n = static_cast<double>(gpus);
        EXPECT_NEAR(cost_on(gpus, step).wire.total(),
                    (n - 1) / n * ((8 + 2) * matrix_elements + (4 + 2) * cut),
                    1e-9 * (matrix_elements + cut));
    }
}

/// The optimizer's products run at the same rate as the model's. Under ZeRO-1 the processes share them, and
/// no process has more than 4/3 times the average.
TEST(CostModel, CountsTheProductsOfMuonsUpdate) {
    const double adamw = cost_on(1, step_of()).update;
    TrainConfig config = config_of(true);
    config.optimizer = kind_of<MuonSettings>;
    double flops = 0;           // operations in the products for qkv, projection, up and down
    double second_moments = 0;  // of AdamW, which Muon does not have
    for (const Shape& shape : {Shape{2304, 768}, Shape{768, 768}, Shape{3072, 768}, Shape{768, 3072}}) {
        flops += 12 * newton_schulz_flops(shape);
        second_moments += 12 * static_cast<double>(shape.elements());
    }
    const CostConstants constants = h200_constants();
    const double alone = cost_on(1, parallel_step(config, 1)).update;
    const double bytes = adamw - 2 * 4 * second_moments / constants.update_bytes;
    EXPECT_NEAR(alone, bytes + flops / constants.product_flops, 1e-9 * alone);
    config.batch *= 4;
    const double shared = cost_on(4, parallel_step(config, 4)).update - bytes / 4;
    EXPECT_GE(shared, 0.99 * flops / constants.product_flops / 4);
    EXPECT_LE(shared, 4.0 / 3 * flops / constants.product_flops / 4);
}

TEST(CostModel, CountsTheBytesOfTheOptimizersState) {
    const auto bytes_beyond_adamw = [](void (*change)(TrainConfig&)) {
        TrainConfig config = config_of(false);
        change(config);
        return (cost_on(1, parallel_step(config, 1)).update - cost_on(1, step_of()).update) *
               h200_constants().update_bytes / flat_elements();
    };
    ParameterStore parameters;
    const Transformer transformer(config_of(false).model, parameters);
    // Padded rows of the vocabulary have no moments, so moments count for this share of the flat blocks'
    // elements.
    const double share = static_cast<double>(parameters.count()) / flat_elements();
    EXPECT_NEAR(bytes_beyond_adamw([](TrainConfig&) {}), 0, 1e-6);
    EXPECT_NEAR(bytes_beyond_adamw([](TrainConfig& c) { c.optimizer = kind_of<LionSettings>; }), -8 * share,
                1e-6);
    EXPECT_NEAR(bytes_beyond_adamw([](TrainConfig& c) { c.moment_dtype = MomentFormat::bf16; }), -8 * share,
                1e-6);
    EXPECT_NEAR(bytes_beyond_adamw([](TrainConfig& c) { c.moment_dtype = MomentFormat::int8; }),
                -11.75 * share, 1e-6);
    EXPECT_NEAR(bytes_beyond_adamw([](TrainConfig& c) { c.masters = MasterFormat::split; }), -2, 1e-6);
    EXPECT_NEAR(bytes_beyond_adamw([](TrainConfig& c) { c.gradient_dtype = TrainDType::bf16; }), -4, 1e-6);
    EXPECT_NEAR(bytes_beyond_adamw([](TrainConfig& c) {
                    c.optimizer = kind_of<LionSettings>;
                    c.moment_dtype = MomentFormat::bf16;
                }),
                -12 * share, 1e-6);
}

/// Under ZeRO-1, processes share 12 bytes per element for masters and moments.
TEST(CostModel, ZeroDividesTheUpdate) {
    EXPECT_DOUBLE_EQ(cost_on(4, step_of(true)).update, cost_on(1, step_of(true)).update / 4);
    EXPECT_EQ(cost_on(4, step_of(false)).update, cost_on(1, step_of(false)).update);
}

TEST(CostModel, ComputeDoesNotDependOnTheNumberOfGpus) {
    EXPECT_EQ(cost_on(64, step_of()).compute, cost_on(1, step_of()).compute);
}

TEST(CostModel, MoreGpusExposeMoreCommunication) {
    for (const bool zero : {false, true}) {
        double before = 0;
        for (const std::int64_t gpus : {2, 4, 8, 16, 64, 1024}) {
            const double exposed = cost_on(gpus, step_of(zero)).exposed;
            EXPECT_GT(exposed, before) << gpus << " GPUs, zero " << zero;
            before = exposed;
        }
    }
}

/// With infinitely fast links and no contention the exposed time is 0; without overlap it would be the time
/// for all collectives.
TEST(CostModel, ExposedTimeIsBetweenZeroAndTheTimeOfAllCollectives) {
    CostConstants constants = h200_constants();
    constants.contention = 0;
    const double all =
        all_reduce_seconds(GpuLayout(4, 8), {.nvlink = constants.nvlink()}, 4 * flat_elements());
    const double exposed = cost_on(4, step_of(), constants).exposed;
    EXPECT_GT(exposed, 0);
    EXPECT_LT(exposed, all);
    // The token embedding is the last bucket, so the step waits at least for its all-reduce.
    const double embedding = 4.0 * 50257 * 768;
    EXPECT_GE(exposed, all_reduce_seconds(GpuLayout(4, 8), {.nvlink = constants.nvlink()}, embedding));
    constants.nvlink_bytes = 1e30;
    constants.nvlink_latency = 0;
    EXPECT_NEAR(cost_on(4, step_of(), constants).exposed, 0, 1e-12);
}

TEST(CostModel, ContentionCostsTime) {
    CostConstants constants = h200_constants();
    constants.contention = 0;
    const double without = cost_on(4, step_of(), constants).exposed;
    constants.contention = 0.5;
    EXPECT_GT(cost_on(4, step_of(), constants).exposed, without);
}

TEST(CostModel, AccumulationReducesOnce) {
    ParallelStep step = step_of();
    const StepCost once = cost_on(4, step);
    step.accumulation_steps = 3;
    const StepCost thrice = cost_on(4, step);
    EXPECT_DOUBLE_EQ(thrice.compute, 3 * once.compute);
    EXPECT_EQ(thrice.wire.total(), once.wire.total());
    EXPECT_NEAR(thrice.exposed, once.exposed, 1e-9 * once.compute);
    EXPECT_EQ(thrice.update, once.update);
}

TEST(CostModel, ASingleNodeIsTheFlatCase) {
    const CostConstants constants = h200_constants();
    const StepCost in_one_node = cost_on(8, step_of(), constants, 8);
    EXPECT_EQ(in_one_node.seconds(), cost_on(8, step_of(), constants, 64).seconds());
    EXPECT_EQ(in_one_node.wire.network, 0);
    EXPECT_GT(cost_on(8, step_of(), constants, 1).wire.network, 0);
}

TEST(CostModel, SettingsDetermineTheWorkOfAProcess) {
    TrainConfig config = config_of(true, 4, 16);
    const ParallelStep step = parallel_step(config, 8);
    EXPECT_EQ(step.accumulation_steps, 2);
    EXPECT_EQ(step.work.head.product_flops, step_work(config.model, DType::bf16, 4).head.product_flops);
    EXPECT_EQ(step.dtype, DType::bf16);
    EXPECT_EQ(step.zero, 1);
}

}  // namespace
}  // namespace gradtile
