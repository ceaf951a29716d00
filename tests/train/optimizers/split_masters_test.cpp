// Float32 masters that share their bytes with bfloat16 weights, on CPU and GPU.
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include <gradtile/core/internal/master_weights.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/optimizers/muon.h>
#include <gradtile/train/trainer.h>

#include <support/cuda_test.h>

#include "../tiny_run.h"
#include "optimizer_problems.h"

namespace gradtile {
namespace {

using test::AdamWProblem;
using test::MuonProblem;
using test::TinyRun;

/// All lower halves of a float32, below zeros, subnormals, borders of binades, the largest number and
/// infinity.
TEST(SplitMasters, AreExactAndRoundToNearest) {
    for (const std::uint32_t upper : {0x0000u, 0x8000u, 0x0001u, 0x007fu, 0x0080u, 0x3f7fu, 0x3f80u, 0xbfffu,
                                      0x4049u, 0x7f7eu, 0x7f7fu, 0xff7fu})
        for (std::uint32_t lower = 0; lower < 0x10000u; ++lower) {
            const auto master = std::bit_cast<float>(upper << 16 | lower);
            const bfloat16 weight = rounded_master(master);
            ASSERT_EQ(std::bit_cast<std::uint32_t>(joined_master(weight, remainder_of(master))),
                      upper << 16 | lower);
            ASSERT_EQ(weight.bits, lower == 0x8000u ? upper + 1 : bfloat16(master).bits)
                << std::hex << upper << lower;
        }
    for (const float sign : {1.0f, -1.0f}) {
        const float infinity = sign * std::numeric_limits<float>::infinity();
        EXPECT_EQ(joined_master(rounded_master(infinity), remainder_of(infinity)), infinity);
    }
    for (const std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xffffffffu}) {
        const auto master = std::bit_cast<float>(nan);
        EXPECT_TRUE(std::isnan(static_cast<float>(rounded_master(master))));
        EXPECT_TRUE(std::isnan(joined_master(rounded_master(master), remainder_of(master))));
    }
}

template <class Problem>
using MakeOptimizer = std::unique_ptr<Optimizer> (*)(const Context&, const Problem&, const OptimizerShard&);

/// Updates a store with float32 masters and a store with remainders, and expects equal bits after each step.
template <class Problem>
void expect_equal_training(const Context& ctx, double lr, MakeOptimizer<Problem> make) {
    Problem full(ctx, DType::bf16), split(ctx, DType::bf16);
    const std::int64_t n = split.store.flat_elements();
    OptimizerShard shard = whole_of(split.store);
    shard.masters = zeros(ctx, {n / remainders_per_word}, DType::i32);
    split_masters(ctx, split.store.master(), shard.masters);
    const std::unique_ptr<Optimizer> of_full = make(ctx, full, whole_of(full.store)),
                                     of_split = make(ctx, split, shard);
    const Tensor joined = empty(ctx, {n}, DType::f32);
    for (int t = 1; t <= 20; ++t) {
        full.set_gradients(ctx, t);
        split.set_gradients(ctx, t);
        of_full->step(ctx, lr);
        of_split->step(ctx, lr);
        join_masters(ctx, split.store.values(), shard.masters, joined);
        ASSERT_EQ(to_host(ctx, joined), to_host(ctx, full.store.master())) << t;
        ASSERT_EQ(to_host(ctx, split.store.values()), to_host(ctx, full.store.values())) << t;
    }
    const auto states = of_full->state();
    for (std::size_t i = 0; i < states.size(); ++i)
        EXPECT_EQ(to_host(ctx, of_split->state()[i].tensor), to_host(ctx, states[i].tensor));
}

void expect_equal_training_of_every_optimizer(const Context& ctx) {
    expect_equal_training<AdamWProblem>(
        ctx, test::adamw_lr, [](const Context& c, const AdamWProblem& p, const OptimizerShard& shard) {
            return std::unique_ptr<Optimizer>(std::make_unique<ElementwiseOptimizer>(
                c, p.store, p.store.parameters(), test::adamw_options, shard));
        });
    expect_equal_training<AdamWProblem>(
        ctx, 1e-3, [](const Context& c, const AdamWProblem& p, const OptimizerShard& shard) {
            return std::unique_ptr<Optimizer>(std::make_unique<ElementwiseOptimizer>(
                c, p.store, p.store.parameters(), Lion{.weight_decay = 0.1}, shard, LearningRateFactor(),
                MomentStorage{.format = MomentFormat::bf16, .seed = Seed{17}}));
        });
    expect_equal_training<MuonProblem>(
        ctx, test::muon_lr, [](const Context& c, const MuonProblem& p, const OptimizerShard& shard) {
            return std::unique_ptr<Optimizer>(
                std::make_unique<Muon>(c, p.store, test::packed_in_blocks, test::muon_options, shard));
        });
    expect_equal_training<MuonProblem>(
        ctx, test::muon_lr, [](const Context& c, const MuonProblem& p, const OptimizerShard& shard) {
            return std::unique_ptr<Optimizer>(
                std::make_unique<Muon>(c, p.store, test::in_blocks, test::normuon_options, shard));
        });
}

TEST(SplitMasters, TrainAsFloat32Masters) {
    for (const int threads : {1, 3})
        expect_equal_training_of_every_optimizer(Context(Device::cpu(), threads));
}

using CudaSplitMasters = test::CudaTest;

TEST_F(CudaSplitMasters, TrainAsFloat32Masters) {
    expect_equal_training_of_every_optimizer(gpu());
}

/// A run may change the format when it is resumed: its checkpoints hold float32 masters in both.
void expect_to_resume_with_either_format(TrainDType gradients) {
    TinyRun run;
    run.config.dtype = TrainDType::bf16;
    run.config.gradient_dtype = gradients;
    run.config.micro_batch = 2;
    TrainConfig uninterrupted = run.config;
    uninterrupted.out = (run.directory / "uninterrupted").string();
    Trainer(uninterrupted, run.on_message).run();
    run.config.masters = MasterFormat::split;
    Trainer(run.config, run.on_message).run(/*stop_after=*/4);
    for (const char* format : {"f32", "split"}) {
        const std::int64_t stop_after = format == std::string("f32") ? 8 : 0;
        Trainer resumed(run.config.out, ResumeOptions{.changes = JsonValue::object({{"masters", format}})},
                        run.on_message);
        if (stop_after > 0) {
            resumed.run(stop_after);
        } else {
            resumed.run();
        }
    }
    EXPECT_EQ(TinyRun::losses(run.config.out), TinyRun::losses(uninterrupted.out));
    const auto last = [](const TrainConfig& config) {
        return read_checkpoint(std::filesystem::path(config.out) / "checkpoints/step_00000012.h5");
    };
    const Checkpoint got = last(run.config), expected = last(uninterrupted);
    const Context ctx;
    const auto expect_equal = [&](const NamedTensors& a, const NamedTensors& b) {
        ASSERT_EQ(a.size(), b.size());
        ASSERT_FALSE(a.empty());
        for (const auto& [name, x] : a) EXPECT_EQ(to_host(ctx, x), to_host(ctx, b.at(name))) << name;
    };
    expect_equal(got.params, expected.params);
    expect_equal(got.master, expected.master);
    expect_equal(got.optimizer, expected.optimizer);
}

/// A save joins masters in the memory of the sums, or beside sums that are too short.
TEST(SplitMasters, ARunResumesWithEitherFormat) {
    for (const TrainDType gradients : {TrainDType::f32, TrainDType::bf16})
        expect_to_resume_with_either_format(gradients);
}

}  // namespace
}  // namespace gradtile
