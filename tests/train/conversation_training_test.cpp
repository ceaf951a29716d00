// Training on conversations: the loss is the mean over the assistant's tokens in a step.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tiny_run.h"

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/data/dataset.h>
#include <gradtile/train/data/examples.h>

namespace gradtile {
namespace {

using test::some_conversations;
using test::TinyRun;

struct ConversationRun : TinyRun {
    ConversationRun() {
        config.data = directory.write("c.jsonl", some_conversations(50));
        config.steps = 6;
        config.batch = 8;
        config.model.context = 32;
    }
    std::vector<nlohmann::json> train(std::int64_t micro_batch, const char* out) {
        config.micro_batch = micro_batch;
        config.out = (directory / out).string();
        Trainer(config, on_message).run();
        return losses(config.out);
    }
};

/// One token's -ln p, from all logits in float64.
double loss_of(const LanguageModel& model, const std::vector<std::int32_t>& before, std::int32_t target) {
    const std::vector<double> logits =
        to_host(model.ctx,
                model.transformer.logits(model.ctx, from_host(model.ctx, before, {1, std::ssize(before)})));
    double sum = 0.0;
    for (const double logit : logits) sum += std::exp(logit);
    return std::log(sum) - logits[static_cast<std::size_t>(target)];
}

/// The reference computes one target's loss at a time: the model reads only the tokens before the target in
/// the same conversation. The model's logits are float32, so the loss has errors below 1e-5.
TEST(ConversationTraining, TheLossOfAStepIsTheMeanOverTheAnswersTokens) {
    ConversationRun run;
    run.config.val_fraction = 0.0;
    run.config.model.context = 256;  // no conversation is cut
    run.config.batch = 50;           // the step has all conversations in the file, in any order
    run.config.steps = 1;
    run.config.lr = run.config.min_lr = 1e-30;  // the weights stay as they were
    run.config.micro_batch = 10;
    Trainer trainer(run.config, run.on_message);
    trainer.run();
    const LanguageModel& model = trainer.model();
    const Dataset dataset = load_dataset({.data = run.config.data, .val_fraction = 0.0}, model.tokenizer);
    const Examples& examples = *dataset.train.examples();
    double sum = 0.0;
    std::int64_t targets = 0;
    for (std::size_t i = 0; i + 1 < examples.begins.size(); ++i) {
        std::vector<std::int32_t> ids(static_cast<std::size_t>(examples.begins[i + 1] - examples.begins[i]));
        dataset.train.read(examples.begins[i], ids);
        for (std::size_t t = 1; t < ids.size(); ++t) {
            if (!examples.is_target[static_cast<std::size_t>(examples.begins[i]) + t]) continue;
            sum += loss_of(model, {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(t)}, ids[t]);
            ++targets;
        }
    }
    EXPECT_GT(targets, 500);
    EXPECT_LT(targets, dataset.train.size() / 2);
    const auto loss = TinyRun::losses(run.config.out).at(0).at("loss").get<double>();
    EXPECT_NEAR(loss, sum / static_cast<double>(targets), 1e-5);
}

/// Micro-batches have different target counts; a micro-batch with one conversation may have a single target.
TEST(ConversationTraining, LossesDoNotDependOnMicroBatches) {
    ConversationRun run;
    const std::vector<nlohmann::json> full = run.train(8, "whole"), parts = run.train(1, "parts");
    ASSERT_EQ(full.size(), 6u);
    for (std::size_t i = 0; i < 6; ++i)
        for (const char* const key : {"loss", "grad_norm"})
            EXPECT_NEAR(full[i].at(key).get<double>(), parts[i].at(key).get<double>(),
                        1e-5 * full[i].at(key).get<double>())
                << key << " of step " << i + 1;
}

/// Each window has one token. One target is the blank after "Assistant:", which is ignored, so its window is
/// skipped.
TEST(ConversationTraining, AWindowWithoutATargetMakesNoStep) {
    TinyRun run;
    run.config.data = run.directory.write(
        "c.jsonl", R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})");
    run.config.tokenizer = "bytes";
    run.config.ignore_token = ' ';
    run.config.model.context = 1;
    run.config.batch = 1;
    run.config.steps = 8;  // the targets " b\nUser:"
    Trainer(run.config, run.on_message).run();
    EXPECT_TRUE(run.messages.empty());
    const std::vector<nlohmann::json> losses = TinyRun::losses(run.config.out);
    EXPECT_EQ(losses.size(), 8u);
    for (const nlohmann::json& line : losses)
        for (const char* key : {"loss", "grad_norm"}) EXPECT_GT(line.at(key).get<double>(), 0.0) << line;
}

TEST(ConversationTraining, TheCheckpointRecordsTheTemplate) {
    ConversationRun run;
    run.train(8, "plain");
    EXPECT_EQ(load_model(run.config.out)->chat_template, ChatTemplate::plain);
    TrainConfig adopted;
    adopt_model(adopted, run.config.out);
    EXPECT_EQ(adopted.chat_template, ChatTemplate::plain);
    run.config.chat_template = ChatTemplate::llama3;
    run.train(8, "llama3");
    EXPECT_EQ(load_model(run.config.out)->chat_template, ChatTemplate::llama3);
}

}  // namespace
}  // namespace gradtile
