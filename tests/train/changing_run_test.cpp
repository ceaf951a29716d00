// Runs whose steps change in size.
#include <gtest/gtest.h>

#include "tiny_run.h"

#include <gradtile/train/trainer.h>

#include <support/json.h>

namespace gradtile {
namespace {

using nlohmann::json;
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

}  // namespace
}  // namespace gradtile
