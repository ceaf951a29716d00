#include <gradtile/train/memory_choice.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <support/error_message.h>

#include "tiny_run.h"

#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/train/memory_request.h>

namespace gradtile {
namespace {

using test::message_of;
using test::TinyRun;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TrainConfig small_model() {
    TrainConfig config;
    config.model = {.layers = 3, .heads = 2, .width = 64, .context = 64, .vocabulary = 100};
    config.batch = 12;
    config.dtype = TrainDType::bf16;
    config.out.clear();
    return config;
}

Context one_thread() {
    return Context(Device::cpu(), 1);
}

std::size_t need_of(const TrainConfig& config) {
    return plan_memory(one_thread(), memory_request(config, Device::cpu())).total();
}

TrainConfig chosen_for(const TrainConfig& config, std::size_t budget) {
    return choose_within(one_thread(), Device::cpu(), config, 1, /*row_ranges=*/false, budget).config;
}

TEST(MemoryChoice, ChangesNothingThatFits) {
    const TrainConfig config = small_model();
    const MemoryChoice choice = choose_within(one_thread(), Device::cpu(), config, 1, false, need_of(config));
    EXPECT_EQ(to_json(choice.config), to_json(config));
    EXPECT_EQ(choice.description, "");
}

/// From the need of all settings at their defaults down to the smallest one. With more layers, slots of
/// gradients take less than sums in bfloat16 save.
TEST(MemoryChoice, FitsEveryBudgetDownToTheSmallestNeed) {
    TrainConfig config = small_model();
    config.model.layers = 8;
    TrainConfig least = config;
    least.micro_batch = 1;
    least.masters = MasterFormat::split;
    least.training.recompute = Recompute::block;
    const std::size_t lossless = need_of(least);
    least.gradient_dtype = TrainDType::bf16;
    const std::size_t rounded_gradients = need_of(least);
    EXPECT_LT(rounded_gradients, lossless);
    least.moment_dtype = MomentFormat::int8;
    const std::size_t smallest = need_of(least);
    std::vector<std::size_t> budgets = {lossless, rounded_gradients};
    for (std::size_t budget = need_of(config); budget >= smallest; budget /= 2) budgets.push_back(budget);
    for (const std::size_t budget : budgets) {
        const TrainConfig chosen = chosen_for(config, budget);
        EXPECT_LE(need_of(chosen), budget);
        EXPECT_EQ(chosen.moment_dtype == MomentFormat::f32, budget >= rounded_gradients) << budget;
        if (budget >= lossless) {
            EXPECT_EQ(chosen.gradient_dtype, TrainDType::f32) << budget;
        }
        EXPECT_EQ(config.batch % chosen.micro_batch_size(), 0);
    }
    EXPECT_LE(need_of(chosen_for(config, smallest)), smallest);
    EXPECT_THAT(message_of([&] { chosen_for(config, smallest - 1); }),
                AllOf(HasSubstr("not even a micro-batch of 1 fits"),
                      HasSubstr("the smallest need, with recompute block"), HasSubstr("moment-dtype int8"),
                      HasSubstr("gradient-dtype bf16")));
}

TEST(MemoryChoice, LeavesSettingsThatWereGiven) {
    TrainConfig config = small_model();
    const std::size_t need = need_of(config);
    config.training.recompute = Recompute::activations;  // not the default
    apply_json(
        config,
        JsonValue::object(
            {{"micro-batch", 0}, {"masters", "f32"}, {"moment-dtype", "f32"}, {"gradient-dtype", "f32"}}),
        "test");
    EXPECT_EQ(to_json(chosen_for(config, need)), to_json(config));
    EXPECT_THAT(message_of([&] { chosen_for(config, need / 2); }),
                AllOf(HasSubstr("memory: micro-batch 12 needs"), Not(HasSubstr("the smallest need, with"))));
    config.given = {"masters", "moment-dtype", "gradient-dtype"};
    const TrainConfig chosen = chosen_for(config, need / 2);
    EXPECT_LT(chosen.micro_batch_size(), 12);
    EXPECT_EQ(chosen.training.recompute, Recompute::activations);
    EXPECT_EQ(chosen.masters, MasterFormat::f32);
}

class MemoryChoiceOnAGpu : public testing::Test {
  protected:
    void SetUp() override {
        if (!GRADTILE_HAVE_CUDA)
            GTEST_SKIP() << "this build has no CUDA operators, whose memory would be planned";
    }
    const Context gpu = one_thread().plan(Arena::for_planning(Device::cuda()));
};

/// A step's tokens pay for the bus: with few of them recomputation is cheaper, with many offloading is.
TEST_F(MemoryChoiceOnAGpu, OffloadsWhereAStepHasEnoughTokens) {
    TrainConfig config = small_model();
    config.model.context = 1024;
    config.micro_batch = 4;
    config.masters = MasterFormat::split;
    config.given = {"micro-batch", "masters", "moment-dtype", "gradient-dtype"};
    const auto chosen = [&](std::int64_t batch) {
        config.batch = batch;
        const MemoryRequest request = memory_request(config, Device::cuda());
        return choose_within(gpu, gpu.device(), config, 1, false, plan_memory(gpu, request).total() - 1);
    };
    EXPECT_EQ(chosen(4).config.offload, Offload::none);
    EXPECT_NE(chosen(4).config.training.recompute, Recompute::none);
    const MemoryChoice offloaded = chosen(4096);
    EXPECT_EQ(offloaded.config.offload, Offload::optimizer);
    EXPECT_EQ(offloaded.config.training.recompute, Recompute::none);
    EXPECT_THAT(offloaded.description,
                testing::MatchesRegex("offload optimizer \\(saves [0-9]+ [KM]iB, .*\\)"));
}

/// The frozen weights are most of the memory of a run with adapters.
TEST_F(MemoryChoiceOnAGpu, OffloadsTheFrozenWeightsOfAdapters) {
    TrainConfig config = small_model();
    config.model.layers = 16;
    config.model.width = 256;
    config.adapters.rank = 4;
    config.batch = config.micro_batch = 1;
    config.cuda_graph = false;  // it would take more than the weights of such a small model
    config.given = {"micro-batch", "masters", "moment-dtype", "gradient-dtype", "recompute"};
    TrainConfig offloaded = config;
    offloaded.offload = Offload::weights;
    const auto need = [&](const TrainConfig& of) {
        return plan_memory(gpu, memory_request(of, Device::cuda())).total();
    };
    EXPECT_LT(need(offloaded), need(config) / 2);
    const MemoryChoice choice = choose_within(gpu, gpu.device(), config, 1, false, need(offloaded));
    EXPECT_EQ(choice.config.offload, Offload::weights);
    EXPECT_THAT(choice.description, testing::MatchesRegex("offload weights \\(saves [0-9]+ [KM]iB, .*\\)"));
}

/// Wide blocks compute for longer than their inputs take to cross the bus, so with recomputed blocks
/// offloading costs nothing. A narrow model would wait for the bus.
TEST_F(MemoryChoiceOnAGpu, OffloadsResidualsWhereBlocksComputeForLongerThanTheBusTakes) {
    const auto chosen = [&](std::int64_t width) {
        TrainConfig config = small_model();
        config.model = {.layers = 16, .heads = 16, .width = width, .context = 1024, .vocabulary = 100};
        config.batch = config.micro_batch = 8;
        config.training.recompute = Recompute::block;
        config.given = {"micro-batch", "masters", "moment-dtype", "gradient-dtype", "recompute"};
        const std::size_t need = plan_memory(gpu, memory_request(config, Device::cuda())).total();
        return choose_within(gpu, gpu.device(), config, 1, false, need - 1);
    };
    const MemoryChoice wide = chosen(4096);
    EXPECT_EQ(wide.config.offload, Offload::residuals);
    EXPECT_THAT(wide.description,
                testing::MatchesRegex("offload residuals \\(saves [0-9]+ MiB, costs no time\\)"));
    EXPECT_FALSE(has_part(chosen(64).config.offload, Offload::residuals));
}

/// The chosen settings are those of the run: the arena has the planned size and throws beyond it.
TEST(MemoryChoice, IsTrainedReportedAndKeptOnAResume) {
    TinyRun run;
    run.config.model.width = 128;
    run.config.model.context = 64;
    run.config.batch = 32;
    run.config.memory_budget = "20MiB";
    const JsonValue before = to_json(run.config);
    std::int64_t micro_batch = 0;
    {
        Trainer trainer(run.config, run.on_message);
        EXPECT_LE(trainer.memory_plan().total(), std::size_t{20} << 20);
        EXPECT_NE(to_json(trainer.config()), before);
        micro_batch = trainer.config().micro_batch;
        ASSERT_FALSE(run.messages.empty());
        EXPECT_THAT(run.messages.front(), AllOf(HasSubstr("memory-budget 20MiB: chosen are "),
                                                HasSubstr("saves"), HasSubstr("costs")));
        trainer.run(/*stop_after=*/3);
    }
    run.messages.clear();
    Trainer resumed(run.config.out, ResumeOptions{}, run.on_message);
    EXPECT_EQ(resumed.config().micro_batch, micro_batch);
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
    resumed.run();
    EXPECT_EQ(resumed.step(), run.config.steps);
}

/// A graph grows with the layers and micro-steps, and a second stream makes it larger.
TEST(StepGraphMemory, FollowsTheKernelsOfAStep) {
    TrainConfig config = small_model();
    const auto bytes = [&](std::int64_t micro_steps) {
        return step_graph_bytes(config, {.micro_steps = micro_steps}, 1);
    };
    const std::size_t one = bytes(1);
    EXPECT_EQ(bytes(40), 40 * one);
    config.model.layers *= 2;
    EXPECT_EQ(bytes(1), 2 * one);
    config.gradient_dtype = TrainDType::bf16;
    EXPECT_GT(bytes(1), 4 * one);
}

TEST(StepGraphMemory, IsPlannedForTheLargestStepThatIsCaptured) {
    TrainConfig config = small_model();
    config.batch = 64;
    config.micro_batch = 1;
    const auto planned = [&] { return memory_request(config, Device::cuda()).graph; };
    const auto bytes = [&](std::int64_t micro_steps) {
        return step_graph_bytes(config, {.micro_steps = micro_steps}, 1);
    };
    EXPECT_EQ(planned(), bytes(64));
    EXPECT_NO_THROW(check_step_graph(config, {.micro_steps = 64}, 1));
    EXPECT_EQ(memory_request(config, Device::cpu()).graph, 0u);
    config.cuda_graph = false;
    EXPECT_EQ(planned(), 0u);
    config.cuda_graph = true;
    config.model.layers = 48;
    config.batch = 51;
    config.gradient_dtype = TrainDType::bf16;
    EXPECT_EQ(planned(), 0u);
    EXPECT_THAT(
        message_of([&] { check_step_graph(config, {.micro_steps = 51}, 1); }),
        testing::MatchesRegex("51 micro-steps of 48 layers would take about [0-9]+ MiB of the GPU's memory; "
                              "expected at most 256 MiB"));
    config.batch = 64;  // stages of 4, 8, 16, 32 and 64 micro-steps
    config.batch_start = 4;
    config.batch_warmup = 100;
    EXPECT_EQ(planned(), bytes(8));
}

TEST(MemoryChoice, BudgetsHaveUnits) {
    EXPECT_EQ(memory_bytes(""), 0u);
    EXPECT_EQ(memory_bytes("0"), 0u);
    EXPECT_EQ(memory_bytes("16"), std::size_t{16} << 20);
    EXPECT_EQ(memory_bytes("900MiB"), std::size_t{900} << 20);
    EXPECT_EQ(memory_bytes("16GiB"), std::size_t{16} << 30);
    EXPECT_EQ(memory_bytes("1.5GiB"), std::size_t{1536} << 20);
    for (const char* wrong :
         {"16GB", "GiB", "-1", "-1GiB", "nan", "inf", "1e300", "16 GiB", "16GiBx", "0x10"})
        EXPECT_EQ(message_of([&] { memory_bytes(wrong); }),
                  concat("memory-budget: ", wrong,
                         "; expected a size such as 16GiB or 900MiB, or a number of MiB"));
    TrainConfig config;
    apply_json(config, JsonValue::object({{"memory-budget", 512}}), "config.json of an earlier version");
    EXPECT_EQ(memory_bytes(config.memory_budget), std::size_t{512} << 20);
    apply_json(config, JsonValue::object({{"memory-budget", 0}}), "config.json of an earlier version");
    EXPECT_EQ(config.memory_budget, "");
}

}  // namespace
}  // namespace gradtile
