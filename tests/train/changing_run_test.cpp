// Runs whose steps change in size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tiny_run.h"

#include <gradtile/train/trainer.h>

#include <support/error_message.h>
#include <support/json.h>

namespace gradtile {
namespace {

using nlohmann::json;
using test::message_of;
using test::TinyRun;

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

}  // namespace
}  // namespace gradtile
