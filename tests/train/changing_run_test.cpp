// Runs whose steps change in size, or whose last weights are an average.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tiny_run.h"

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/trainer.h>

#include <support/error_message.h>
#include <support/json.h>

namespace gradtile {
namespace {

using nlohmann::json;
using test::message_of;
using test::state_of;
using test::TinyRun;

/// The average does not change the steps before the end.
TEST(Trainer, ItsLastWeightsAreTheAverage) {
    TinyRun run;
    run.config.steps = 15;
    run.config.save_every = 14;
    const auto weights_of = [](const Trainer& trainer) {
        return to_host(trainer.model().ctx, trainer.model().parameters.values());
    };
    TrainConfig plain = run.config;
    plain.out = (run.directory / "plain").string();
    std::vector<double> mean;
    {
        Trainer trainer(plain, run.on_message);
        trainer.on_step([&](const StepReport& report) {
            const std::vector<double> weights = weights_of(trainer);
            mean.resize(weights.size());
            for (std::size_t i = 0; i < mean.size(); ++i)
                mean[i] += (weights[i] - mean[i]) / static_cast<double>(report.step);
        });
        trainer.run();
    }
    run.config.average_decay = 0.99;  // a plain mean of up to 100 steps
    Trainer trainer(run.config, run.on_message);
    trainer.run();
    const std::vector<double> weights = weights_of(trainer);
    ASSERT_EQ(weights.size(), mean.size());
    for (std::size_t i = 0; i < mean.size(); ++i)  // 15 roundings of numbers below 2
        EXPECT_NEAR(weights[i], mean[i], 15 * 4 * 0x1p-24 * 2) << i;
    const std::vector<json> averaged_losses = TinyRun::losses(run.config.out),
                            losses = TinyRun::losses(plain.out);
    for (std::size_t i = 0; i + 1 < losses.size(); ++i) EXPECT_EQ(averaged_losses[i], losses[i]);
    EXPECT_EQ(averaged_losses.back()["loss"], losses.back()["loss"]);
    EXPECT_NE(averaged_losses.back()["val_loss"], losses.back()["val_loss"]);
    const auto checkpoint = [](const TrainConfig& config, const char* name) {
        return read_checkpoint(std::filesystem::path(config.out) / "checkpoints" / name);
    };
    const Checkpoint last = checkpoint(run.config, "step_00000015.h5");
    const Context ctx(Device::cpu(), 1);
    const Parameter& wte = trainer.model().parameters.find("wte.weight");
    EXPECT_EQ(to_host(ctx, last.params.at(wte.name())), to_host(ctx, wte.value()));
    EXPECT_EQ(to_host(ctx, last.optimizer.at("average/wte.weight")),
              to_host(ctx, checkpoint(plain, "step_00000015.h5").params.at(wte.name())));
    EXPECT_EQ(to_host(ctx, checkpoint(run.config, "step_00000014.h5").params.at(wte.name())),
              to_host(ctx, checkpoint(plain, "step_00000014.h5").params.at(wte.name())));
}

TEST(Trainer, CountsTheTokensOfAGrowingBatch) {
    TinyRun run;
    run.config.batch_start = 1;
    run.config.batch_warmup = 4;
    { Trainer(run.config, run.on_message).run(/*stop_after=*/5); }
    const RunSummary summary = Trainer(run.config.out, ResumeOptions{}, run.on_message).run();
    std::int64_t tokens = 0;
    for (const json& line : TinyRun::losses(run.config.out)) {
        const std::int64_t step = line["step"];
        tokens += 16 * (step <= 2 ? 1 : step <= 4 ? 2 : 4);
        EXPECT_EQ(line["tokens"], tokens) << step;
    }
    EXPECT_EQ(summary.tokens, tokens);
}

TEST(Trainer, RefusesToCutConversations) {
    TinyRun run;
    run.config.data = run.directory.write("talk.jsonl", test::some_conversations(60));
    run.config.context_start = 4;
    run.config.context_warmup = 6;
    EXPECT_EQ(message_of([&] { Trainer(run.config, run.on_message); }),
              "context-start: 4 with conversations or completions; expected 0, because an answer needs its "
              "whole prompt");
}

/// A finished run that is given more steps goes on with the weights, not with their average.
TEST(Trainer, MoreStepsContinueWithTheWeightsBeforeTheAverage) {
    TinyRun run;
    run.config.average_decay = 0.8;
    run.config.dtype = TrainDType::bf16;
    const ResumeOptions more{.changes = JsonValue::object({{"steps", 20}})};
    TrainConfig stopped = run.config;
    stopped.out = (run.directory / "stopped").string();
    { Trainer(run.config, run.on_message).run(); }
    { Trainer(stopped, run.on_message).run(/*stop_after=*/11); }
    Trainer from_end(run.config.out, more, run.on_message), from_middle(stopped.out, more, run.on_message);
    EXPECT_EQ(from_end.run().step, 20);
    EXPECT_EQ(from_middle.run().step, 20);
    EXPECT_EQ(state_of(from_end), state_of(from_middle));
}

}  // namespace
}  // namespace gradtile
