#include <gradtile/tools/generation/sampler.h>

#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/evaluation/evaluate.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::HasSubstr;

const std::vector<double> logits{std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};

/// Returns how often each token is chosen when u is uniform in [0, 1).
std::map<std::int32_t, double> shares(const SampleOptions& options) {
    constexpr int draws = 1000;
    std::map<std::int32_t, double> count;
    for (int i = 0; i < draws; ++i) count[choose_token(logits, options, (i + 0.5) / draws)] += 1.0 / draws;
    return count;
}

void expect_shares(const SampleOptions& options, const std::map<std::int32_t, double>& expected) {
    const auto actual = shares(options);
    ASSERT_EQ(actual.size(), expected.size());
    // Each token has an interval in u, and each interval end may miss one of the 1000 points.
    for (const auto& [token, share] : expected) EXPECT_NEAR(actual.at(token), share, 2e-3) << token;
}

TEST(ChooseToken, FollowsTheSoftmax) {
    expect_shares({}, {{0, 0.1}, {1, 0.4}, {2, 0.2}, {3, 0.3}});
}

TEST(ChooseToken, IsGreedyAtTemperatureZeroAndTakesTheFirstOfEquals) {
    expect_shares({.temperature = 0.0}, {{1, 1.0}});
    EXPECT_EQ(choose_token(std::vector{0.0, 2.0, 2.0}, {.temperature = 0.0}, 0.9), 1);
}

TEST(ChooseToken, DividesLogitsByTheTemperature) {  // p^(1/T): T = 1/2 squares the probabilities
    const double sum = 0.01 + 0.16 + 0.04 + 0.09;
    expect_shares({.temperature = 0.5}, {{0, 0.01 / sum}, {1, 0.16 / sum}, {2, 0.04 / sum}, {3, 0.09 / sum}});
}

TEST(ChooseToken, DrawsAmongTheTopK) {
    expect_shares({.top_k = 2}, {{1, 4.0 / 7.0}, {3, 3.0 / 7.0}});
    expect_shares({.top_k = 1}, {{1, 1.0}});
    expect_shares({.top_k = 99}, {{0, 0.1}, {1, 0.4}, {2, 0.2}, {3, 0.3}});
}

TEST(ChooseToken, DrawsAmongTheFewestTokensThatHaveTopP) {
    expect_shares({.top_p = 0.35}, {{1, 1.0}});
    expect_shares({.top_p = 0.65}, {{1, 4.0 / 7.0}, {3, 3.0 / 7.0}});
    expect_shares({.top_p = 0.85}, {{1, 4.0 / 9.0}, {2, 2.0 / 9.0}, {3, 3.0 / 9.0}});
}

TEST(ChooseToken, AppliesTopPAfterTopK) {
    expect_shares({.top_k = 3, .top_p = 0.5}, {{1, 4.0 / 7.0}, {3, 3.0 / 7.0}});
}

TEST(ChooseToken, NeverLeavesTheVocabulary) {
    EXPECT_EQ(choose_token(logits, {}, std::nextafter(1.0, 0.0)), 0);  // the least likely token is last
    EXPECT_EQ(choose_token(std::vector{1e4, -1e4}, {.temperature = 1e-3}, std::nextafter(1.0, 0.0)), 0);
}

TEST(ChooseToken, RefusesNoLogits) {
    for (const double temperature : {0.0, 1.0})
        EXPECT_THAT(message_of([&] { choose_token({}, {.temperature = temperature}, 0.5); }),
                    HasSubstr("sample: no logits"));
    EXPECT_THAT(message_of([] { most_likely_token({}); }), HasSubstr("next token: no logits"));
}

TEST(ChooseToken, RefusesLogitsThatAreNotFinite) {
    EXPECT_THROW(choose_token(std::vector{0.0, std::nan("")}, {}, 0.5), Error);
}

struct SmallModel {
    explicit SmallModel(std::int64_t vocabulary = 0) {
        const Tokenizer tokenizer = Tokenizer::characters_of("\nabcdefg", "test");
        model = std::make_unique<LanguageModel>(
            Context(Device::cpu(), 1),
            ModelConfig{.layers = 1,
                        .heads = 2,
                        .width = 16,
                        .context = 8,
                        .vocabulary = vocabulary > 0 ? vocabulary : tokenizer.vocab_size()},
            DType::f32, tokenizer);
        model->parameters.initialize(model->ctx, Seed{3});
    }
    std::unique_ptr<LanguageModel> model;
};

TEST(Sample, IsAFunctionOfTheSeed) {
    const SmallModel small;
    const SampleOptions options{.prompt = "abc", .tokens = 40, .seed = 5};
    const std::string text = sample(*small.model, options);
    EXPECT_EQ(text.size(), 43u);
    EXPECT_TRUE(text.starts_with("abc"));
    EXPECT_EQ(sample(*small.model, options), text);
    SampleOptions other = options;
    other.seed = 6;
    EXPECT_NE(sample(*small.model, other), text);
}

TEST(Sample, SeesOnlyTheLastContextTokens) {
    const SmallModel small;
    const SampleOptions options{.tokens = 5, .temperature = 0.0};
    const std::vector<std::int32_t> long_prompt{1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 1, 2},
        tail(long_prompt.end() - 8, long_prompt.end());
    EXPECT_EQ(sample_tokens(*small.model, long_prompt, options), sample_tokens(*small.model, tail, options));
}

TEST(Sample, BeginsAfterALineBreakWithoutAPrompt) {
    const SmallModel small;
    const std::string text = sample(*small.model, {.tokens = 10});
    EXPECT_EQ("\n" + text, sample(*small.model, {.prompt = "\n", .tokens = 10}));
}

TEST(Sample, NeverDrawsTokensWithoutText) {
    const SmallModel padded(512);  // 504 ids without a character
    EXPECT_EQ(sample(*padded.model, {.prompt = "a", .tokens = 50}).size(), 51u);
}

TEST(Sample, RefusesUnknownTokensAndCharacters) {
    const SmallModel small;
    EXPECT_THAT(message_of([&] { sample(*small.model, {.prompt = "abcz"}); }), HasSubstr("prompt"));
    EXPECT_THROW(sample(*small.model, {.prompt = "a", .temperature = -1.0}), Error);
    EXPECT_THROW(sample(*small.model, {.prompt = "a", .top_p = 0.0}), Error);
    EXPECT_THROW(sample(*small.model, {.prompt = "a", .top_k = -1}), Error);
    EXPECT_THROW(sample_tokens(*small.model, std::vector<std::int32_t>{8}, {}), Error);
    EXPECT_THROW(sample_tokens(*small.model, std::vector<std::int32_t>{}, {}), Error);
}

TEST(Evaluate, PredictsEveryTokenButTheFirstOnceWhateverTheBatch) {
    const SmallModel small;
    const std::string text = "abcabcadgfedcbaabc\nabc";  // 22 tokens: two 8-token windows and a short one
    const TokenSequence tokens(small.model->tokenizer->encode(text, "test"), "test");
    const Evaluation one = evaluate(*small.model, tokens, {.batch = 1});
    EXPECT_EQ(one.targets, 21);
    EXPECT_NEAR(one.perplexity, std::exp(one.loss), 1e-12 * one.perplexity);
    EXPECT_NEAR(*one.bits_per_character, one.loss / std::log(2.0), 1e-12);
    EXPECT_EQ(one.bits_per_byte, one.bits_per_character);  // ASCII
    // Both losses add three float64 numbers in different orders; the windows themselves are equal.
    EXPECT_NEAR(evaluate(*small.model, tokens, {.batch = 3}).loss, one.loss, 1e-6 * one.loss);

    // Computes the loss window by window from the logits.
    double sum = 0.0;
    const std::vector<std::int32_t> ids = small.model->tokenizer->encode(text, "test");
    for (std::int64_t target = 1; target < std::ssize(ids); ++target) {
        const std::int64_t begin = (target - 1) / 8 * 8;
        const std::span<const std::int32_t> seen(ids.begin() + begin, ids.begin() + target);
        const auto scores = to_host(
            small.model->ctx, small.model->transformer.logits(
                                  small.model->ctx, from_host(small.model->ctx, seen, {1, target - begin})));
        double normaliser = 0.0;
        for (const double score : scores) normaliser += std::exp(score);
        sum += std::log(normaliser) - scores[static_cast<std::size_t>(ids[static_cast<std::size_t>(target)])];
    }
    EXPECT_NEAR(one.loss, sum / 21, 1e-5);  // float32 logits are about 1
}

TEST(Evaluate, CountsCharactersAndBytesOfTheText) {
    const std::string text =
        "\xc3\xa4"
        "b\xe2\x82\xac"
        "b";  // a-umlaut, b, euro sign, b: 4 characters
    const Tokenizer tokenizer = Tokenizer::bytes();
    LanguageModel model(Context(Device::cpu(), 1),
                        {.layers = 1, .heads = 1, .width = 8, .context = 4, .vocabulary = 256}, DType::f64,
                        tokenizer);
    model.parameters.initialize(model.ctx, Seed{1});
    const Evaluation result = evaluate(model, TokenSequence(tokenizer.encode(text, "test"), "test"));
    // Targets are the 6 bytes after the first: its continuation byte, b, the euro sign's three, b.
    const double bits = result.loss * 6 / std::log(2.0);
    EXPECT_DOUBLE_EQ(*result.bits_per_byte, bits / 6);
    EXPECT_DOUBLE_EQ(*result.bits_per_character, bits / 3);
}

}  // namespace
}  // namespace gradtile
