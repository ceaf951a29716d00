// Text samples over the course of training, which a trainer writes to metrics.jsonl.
#include <gradtile/tools/observers/run_observers.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <support/error_message.h>

#include <gradtile/tools/generation/sampler.h>

#include <train/tiny_run.h>

namespace gradtile {
namespace {

using nlohmann::json;
using test::TinyRun;

std::vector<json> samples_of(const std::filesystem::path& run) {
    std::vector<json> samples = TinyRun::metrics(run);
    std::erase_if(samples,
                  [](const json& line) { return !line.contains("event") || line["event"] != "sample"; });
    return samples;
}

constexpr auto no_messages = [](const std::string&) {};

void train(Trainer trainer, std::int64_t stop_after = 0) {
    add_samples(trainer);
    trainer.run(stop_after);
}

TEST(TrainerSamples, AreWrittenWhenDueAndAtTheEndAndDoNotDependOnAResume) {
    TinyRun run;
    run.config.sample_every = 5;
    run.config.sample_tokens = 9;
    run.config.sample_prompt = "the ";
    run.config.training.dropout = 0.1;
    const auto straight = run.directory / "straight", resumed = run.directory / "resumed",
               without = run.directory / "without";
    run.config.out = straight.string();
    train(Trainer(run.config, no_messages));
    const std::vector<json> samples = samples_of(straight);
    ASSERT_EQ(samples.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(samples[i]["step"], (std::vector<int>{5, 10, 12})[i]);
        EXPECT_EQ(samples[i]["prompt"], "the ");
        EXPECT_EQ(samples[i]["text"].get<std::string>().size(), 9u);
    }
    // The last one is the text that `gradtile sample` draws.
    const auto model = load_model(straight);
    EXPECT_EQ(
        samples[2]["text"],
        sample_text(*model, {.prompt = "the ", .tokens = 9, .temperature = 0.8, .seed = run.config.seed})
            .text);
    run.config.out = resumed.string();
    train(Trainer(run.config, no_messages), /*stop_after=*/7);
    train(Trainer(resumed, {}, no_messages));
    EXPECT_EQ(samples_of(resumed), samples);
    // Drawing texts does not change training.
    run.config.out = without.string();
    run.config.sample_every = 0;
    Trainer(run.config, [](const std::string&) {}).run();
    std::vector<json> steps = TinyRun::metrics(straight);
    std::erase_if(steps, [](const json& line) { return line.contains("event"); });
    std::vector<json> steps_without = TinyRun::metrics(without);
    std::erase_if(steps_without, [](const json& line) { return line.contains("event"); });
    EXPECT_EQ(steps, steps_without);
}

TEST(TrainerSamples, AreRefusedAtTheStartWhereEachWouldFail) {
    TinyRun run;
    run.config.sample_every = 5;
    const auto refusal = [&] {
        return test::message_of([&] { Trainer trainer(run.config, [](const std::string&) {}); });
    };
    EXPECT_THAT(test::message_of([&] { Trainer(run.config, [](const std::string&) {}).run(); }),
                testing::HasSubstr("sample-every: 5"));
    EXPECT_FALSE(exists(std::filesystem::path(run.config.out)));
    run.config.sample_prompt = "Z";
    EXPECT_THAT(refusal(), testing::HasSubstr("sample-prompt"));
    run.config.sample_prompt = std::string(1001, 'a');
    EXPECT_THAT(refusal(), testing::HasSubstr("sample-prompt: 1001 bytes; expected at most 1000"));
    run.config.sample_prompt.clear();
    run.config.data = run.directory.write("tokens.bin", std::string(4000, '\0'));
    EXPECT_THAT(refusal(), testing::HasSubstr("sample-every: 5; expected 0 for token files"));
    EXPECT_FALSE(exists(std::filesystem::path(run.config.out)));
}

}  // namespace
}  // namespace gradtile
