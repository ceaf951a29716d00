// gradtile eval: strides, multiple-choice questions, conversations and bits per byte.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"

#include <tiny_run.h>

namespace gradtile::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class Eval : public testing::Test {
  protected:
    void SetUp() override { expect_success(run(tiny_training(stories_, out_))); }
    nlohmann::json eval(const Arguments& flags) const {
        const Outcome outcome = run(Arguments{"eval", out_.string(), "--json"} + flags);
        expect_success(outcome);
        return nlohmann::json::parse(outcome.out);
    }

    TemporaryDirectory place_;
    std::string stories_ = write_stories(place_);
    std::filesystem::path out_ = place_ / "run";
    std::string task_ = place_.write(
        "task.jsonl", R"({"ctx":"One day a fox","endings":["sat","ran away"],"label":0})"
                      "\n"
                      R"({"ctx":"The hill","endings":["was green","sang","met Tom"],"label":"2"})"
                      "\n");
};

TEST_F(Eval, AStrideChangesTheTokensBeforeATargetButNotTheTargets) {
    const nlohmann::json full = eval({"--data", stories_}),
                         same = eval({"--data", stories_, "--stride", "16"}),
                         small = eval({"--data", stories_, "--stride", "4"});
    EXPECT_EQ(full, same);
    EXPECT_EQ(small["targets"], full["targets"]);
    EXPECT_NE(small["loss"], full["loss"]);
    const auto loss = small["loss"].get<double>();
    EXPECT_NEAR(small["perplexity"].get<double>(), std::exp(loss), 1e-9 * std::exp(loss));
    // Stories are ASCII, and each character is a token.
    EXPECT_NEAR(small["bits_per_byte"].get<double>(), loss / std::log(2.0), 1e-9);
    expect_refused(run({"eval", out_.string(), "--data", stories_, "--stride", "17"}),
                   {"--stride: 17", "16"});
    expect_refused(run({"eval", out_.string(), "--data", stories_, "--stride", "-1"}), {"--stride: -1"});
}

TEST_F(Eval, QuestionsGiveAccuraciesAndTheLossOfEveryChoice) {
    const nlohmann::json result = eval({"--task", task_});
    EXPECT_EQ(result["questions"], 2);
    EXPECT_NEAR(result["chance"].get<double>(), (1.0 / 2 + 1.0 / 3) / 2, 1e-12);
    EXPECT_EQ(result["answers"][0]["tokens"], nlohmann::json({4, 9}));
    EXPECT_EQ(result["answers"][1]["sums"].size(), 3u);
    EXPECT_EQ(eval({"--task", task_, "--batch", "1"})["accuracy"], result["accuracy"]);
    const Outcome readable = run({"eval", out_.string(), "--task", task_});
    expect_success(readable);
    EXPECT_THAT(readable.out, HasSubstr("2 questions\naccuracy "));
    expect_refused(run({"eval", out_.string()}), {"--data FILE or --task FILE"});
    expect_refused(run({"eval", out_.string(), "--task", task_, "--data", stories_}), {"--data", "--task"});
    expect_refused(run({"eval", out_.string(), "--task", task_, "--stride", "4"}), {"--task", "--stride"});
    expect_refused(run({"eval", out_.string(), "--task", stories_}), {"stories.txt: line 1: not JSON"});
    expect_refused(run({"eval", out_.string(), "--task", (place_ / "none").string()}), {"none"});
}

TEST_F(Eval, ConversationsCountTheAnswersOnly) {
    const std::string data = place_.write("c.jsonl", some_conversations(30));
    const std::string out = place_ / "talk";
    const Outcome trained =
        run(tiny_training(data, out) + Arguments{"--val-data", data, "--chat-template", "chatml", "--quiet"});
    expect_success(trained);
    const Outcome evaluated = run({"eval", out, "--data", data});
    expect_success(evaluated);
    EXPECT_THAT(evaluated.out, HasSubstr("30 conversations in the template chatml"));
    EXPECT_THAT(evaluated.out, HasSubstr("bits per byte"));
    const nlohmann::json result = nlohmann::json::parse(run({"eval", out, "--data", data, "--json"}).out);
    // The run's last validation is over the same data.
    const auto last = steps_of(out).back().at("val_loss").get<double>();
    EXPECT_NEAR(result["loss"].get<double>(), last, 1e-6 * last);
    EXPECT_NEAR(result["bits_per_byte"].get<double>(), last / std::log(2.0), 1e-5);
}

/// A run with prefix from its data to its texts. Its model says how prompts are read.
TEST_F(Eval, PromptsAreReadAsTheModelWasTrained) {
    const std::string rows = some_shared_prompts(40), data = place_.write("shared.jsonl", rows),
                      separate = place_.write("separate.jsonl", separate_completions(rows));
    const auto trained = [&](const std::string& name, const Arguments& flags) {
        const std::string out = place_ / name;
        expect_success(run(tiny_training(data, out) +
                           Arguments{"--val-data", separate, "--context", "40", "--quiet"} + flags));
        const nlohmann::json shared = nlohmann::json::parse(run({"eval", out, "--data", data, "--json"}).out),
                             alone =
                                 nlohmann::json::parse(run({"eval", out, "--data", separate, "--json"}).out);
        EXPECT_EQ(shared["targets"], alone["targets"]);
        const auto loss = alone["loss"].get<double>(),
                   last = steps_of(out).back().at("val_loss").get<double>();
        EXPECT_NEAR(shared["loss"].get<double>(), loss, 1e-5 * loss);
        EXPECT_NEAR(last, loss, 1e-5 * loss);
        return out;
    };
    expect_refused(run({"tokenize", data, "--tokenizer", "bytes", "--out", (place_ / "t.bin").string()}),
                   {"shared.jsonl: holds completions that share a prompt"});
    trained("causal", {});
    const std::string out = trained("prefix", {"--prefix", "--sample-every", "4"});
    const Arguments sample{"sample", out, "--prompt", "the cat", "--temperature", "0", "--tokens", "90"};
    const Outcome text = run(sample);
    expect_success(text);
    EXPECT_THAT(text.out, StartsWith("the cat"));
    const std::string text_file = place_.write("text.txt", some_text(200));
    expect_refused(run({"eval", out, "--data", text_file}),
                   {"text.txt: holds no prompts with completions; expected them for a model with prefix"});
    expect_refused(run({"eval", out, "--data", separate, "--logits", (place_ / "l").string()}),
                   {"logits", "prefix"});
    expect_refused(run({"export", out, "--out", (place_ / "exported").string()}),
                   {"prefix true cannot be stored"});
}

TEST_F(Eval, BitsPerByteAreNotKnownWithoutATokenizer) {
    const std::string ids = place_.write("ids.bin", std::string(400, '\1')), out = place_ / "ids";
    expect_success(run(tiny_training(ids, out)));
    EXPECT_THAT(run({"eval", out, "--data", ids}).out, HasSubstr("bits per byte are not known"));
    expect_refused(run({"eval", out, "--task", task_}), {"has no tokenizer"});
}

}  // namespace
}  // namespace gradtile::test
