// Generating several texts at once, against each text alone.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/generation/next_token.h>
#include <gradtile/tools/generation/sampler.h>

#include <support/cuda_test.h>
#include <support/error_message.h>
#include <tools/generation/generation_cases.h>

namespace gradtile {
namespace {

using test::GenerationCase;
using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;

using Tokens = std::vector<std::int32_t>;

/// Prompts with 1 to 30 tokens: shorter than the context, as long, and longer.
std::vector<Tokens> prompts_of_many_lengths() {
    std::vector<Tokens> prompts;
    for (const std::int32_t length : {5, 1, 12, 30, 5, 2, 11, 13}) {
        Tokens& prompt = prompts.emplace_back();
        for (std::int32_t i = 0; i < length; ++i) prompt.push_back((7 * i * i + 3 * length + i) % 40);
    }
    return prompts;
}

std::vector<TokenRequest> requests_of(const std::vector<Tokens>& prompts, std::uint64_t number = 0) {
    std::vector<TokenRequest> requests;
    for (const Tokens& prompt : prompts) requests.push_back({prompt, number});
    return requests;
}

std::vector<Tokens> batch_of(const LanguageModel& model, const std::vector<TokenRequest>& requests,
                             const SampleOptions& options, std::int64_t batch) {
    std::vector<Tokens> texts(requests.size());
    std::vector<std::size_t> ended;
    sample_token_batch(model, requests, options, batch,
                       {.on_token =
                            [&](std::size_t i, std::int32_t token) {
                                texts[i].push_back(token);
                                return true;
                            },
                        .on_end = [&](std::size_t i) { ended.push_back(i); }});
    std::ranges::sort(ended);
    EXPECT_EQ(ended.size(), requests.size());
    EXPECT_TRUE(std::ranges::adjacent_find(ended) == ended.end()) << "a text ended twice";
    return texts;
}

/// Texts may differ after a token whose logit and the largest logit have a relative difference of at most
/// 1e-5.
void expect_greedy_text(const LanguageModel& model, const Tokens& prompt, const Tokens& text) {
    NextToken next(model);
    Tokens full_text = prompt;
    for (const std::int32_t token : text) {
        std::vector<double> logits = test::logits_after(next, full_text);
        const auto best = std::ranges::max_element(logits) - logits.begin();
        if (token != best) {
            const double largest = logits[static_cast<std::size_t>(best)];
            EXPECT_LE(largest - logits[static_cast<std::size_t>(token)], 1e-5 * std::abs(largest));
            return;
        }
        full_text.push_back(token);
    }
}

class BatchGeneration : public testing::TestWithParam<GenerationCase> {
  protected:
    static std::unique_ptr<LanguageModel> model(DType dtype) {
        return test::generation_model(GetParam(), dtype);
    }
};
INSTANTIATE_TEST_SUITE_P(Models, BatchGeneration, testing::ValuesIn(test::generation_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(BatchGeneration, GreedyTextsEqualThoseOfTheirPromptsAloneAlsoBeyondAFullContext) {
    const auto small = model(DType::f32);
    const std::vector<Tokens> prompts = prompts_of_many_lengths();
    for (const std::int64_t batch : {1, 3, 8}) {
        const std::vector<Tokens> texts =
            batch_of(*small, requests_of(prompts), {.tokens = 40, .temperature = 0.0}, batch);
        for (std::size_t i = 0; i < prompts.size(); ++i) {
            EXPECT_EQ(texts[i].size(), 40u);
            expect_greedy_text(*small, prompts[i], texts[i]);
        }
    }
}

/// In float64 no drawn number lies so close to the border between two tokens that rounding matters.
TEST_P(BatchGeneration, DrawnTextsEqualThoseOfTheirPromptsAlone) {
    const auto small = model(DType::f64);
    const std::vector<Tokens> prompts = prompts_of_many_lengths();
    SampleOptions options{
        .tokens = 30, .temperature = 1.3, .top_p = 0.9, .repetition_penalty = 1.1, .seed = 9};
    for (const std::uint64_t number : {0u, 4u}) {
        const std::vector<Tokens> texts = batch_of(*small, requests_of(prompts, number), options, 5);
        options.number = number;
        for (std::size_t i = 0; i < prompts.size(); ++i)
            EXPECT_EQ(texts[i], sample_tokens(*small, prompts[i], options)) << i;
    }
}

TEST_P(BatchGeneration, LogitsEqualThoseOfTheTextAloneInFloat64) {
    const auto small = model(DType::f64);
    std::vector<Tokens> texts = prompts_of_many_lengths();
    const std::vector<std::int64_t> slots{0, 1, 3, 4, 5, 7, 8, 9};
    NextToken together(*small, 10);
    std::vector<NextToken> alone;
    for (std::size_t i = 0; i < texts.size(); ++i) alone.emplace_back(*small);
    for (int step = 0; step < 25; ++step) {
        std::vector<NextToken::Text> growing;
        std::vector<std::size_t> chosen;  // some texts pause in some steps
        for (std::size_t i = 0; i < texts.size(); ++i)
            if ((static_cast<std::size_t>(step) + i) % 4 != 0) {
                growing.push_back({slots[i], texts[i]});
                chosen.push_back(i);
            }
        const std::vector<std::vector<double>> logits = together.logits(growing);
        ASSERT_EQ(logits.size(), chosen.size());
        for (std::size_t n = 0; n < chosen.size(); ++n) {
            const std::vector<double> expected = test::logits_after(alone[chosen[n]], texts[chosen[n]]);
            ASSERT_EQ(logits[n].size(), expected.size());
            // Logits are between 10 and 100, after sums whose errors are some hundred roundings of 1e-16.
            for (std::size_t v = 0; v < expected.size(); ++v)
                ASSERT_NEAR(logits[n][v], expected[v], 1e-10) << step << ", text " << chosen[n];
            for (std::size_t grown = 0; grown <= chosen[n] % 3; ++grown)
                texts[chosen[n]].push_back(static_cast<std::int32_t>((7 * step + 2 * grown + n) % 40));
        }
    }
}

std::unique_ptr<LanguageModel> a_model() {
    return test::generation_model(test::generation_cases().front(), DType::f64);
}

TEST(BatchGeneration, AnEndedTextLeavesItsPlaceToTheNextRequest) {
    const auto small = a_model();
    const std::vector<Tokens> prompts = prompts_of_many_lengths();
    const SampleOptions options{.tokens = 20, .seed = 2};
    std::vector<Tokens> texts(prompts.size());
    std::vector<std::size_t> begun;
    sample_token_batch(*small, requests_of(prompts), options, 2,
                       {.on_token = [&](std::size_t i, std::int32_t token) {
                           if (texts[i].empty()) begun.push_back(i);
                           texts[i].push_back(token);
                           return texts[i].size() < 3 + 2 * (i % 5);
                       }});
    EXPECT_THAT(begun, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        Tokens expected = sample_tokens(*small, prompts[i], options);
        expected.resize(3 + 2 * (i % 5));
        EXPECT_EQ(texts[i], expected) << i;
    }
}

TEST(BatchGeneration, RequestsWithoutTokensEndAtOnce) {
    const auto small = a_model();
    const std::vector<Tokens> texts =
        batch_of(*small, requests_of(prompts_of_many_lengths()), {.tokens = 0}, 3);
    for (const Tokens& text : texts) EXPECT_TRUE(text.empty());
    sample_token_batch(*small, {}, {}, 3, {});
}

TEST(BatchGeneration, RefusesWrongRequestsBeforeTheFirstDraw) {
    const auto small = a_model();
    int drawn = 0;
    const auto refusal = [&](const Tokens& prompt, std::int64_t batch = 2,
                             const SampleOptions& options = {}) {
        const Tokens sound{1, 2};
        const std::vector<TokenRequest> requests{{sound, 0}, {prompt, 0}};
        return message_of([&] {
            sample_token_batch(*small, requests, options, batch, {.on_token = [&](std::size_t, std::int32_t) {
                ++drawn;
                return true;
            }});
        });
    };
    EXPECT_THAT(refusal({}), HasSubstr("the prompt has no token"));
    EXPECT_THAT(refusal({3, 40}), HasSubstr("token 40 of the prompt is outside the vocabulary of 40"));
    EXPECT_THAT(refusal({1}, 0), HasSubstr("batch 0"));
    EXPECT_THAT(refusal({1}, 2, {.temperature = -1}), HasSubstr("temperature"));
    EXPECT_EQ(drawn, 0);
    EXPECT_THAT(message_of([&] { sample_text_batch(*small, std::vector<std::string>{"a"}, 1, {}, 2, {}); }),
                HasSubstr("no tokenizer"));
}

TEST(BatchGeneration, RefusesTextsThatDoNotFitTheCache) {
    const auto small = a_model();
    const Context& ctx = small->ctx;
    KeyValueCache cache(ctx, small->transformer.config, DType::f64, 2);
    const Tokens tokens{1, 2, 3};
    const auto refusal = [&](const std::vector<TextToRead>& texts) {
        return message_of([&] { small->transformer.logits(ctx, packed_texts(ctx, texts), cache); });
    };
    EXPECT_THAT(refusal({{2, 0, tokens}}), HasSubstr("slot 2 of a cache"));
    EXPECT_THAT(refusal({{1, 0, tokens}, {0, 0, tokens}}), HasSubstr("slots in increasing order"));
    EXPECT_THAT(refusal({{0, 0, tokens}, {0, 3, tokens}}), HasSubstr("slots in increasing order"));
    EXPECT_THAT(refusal({{0, 10, tokens}}), HasSubstr("3 tokens after 10 in the cache; it holds 12"));
    EXPECT_THAT(refusal({{0, -1, tokens}}), HasSubstr("after -1"));
    EXPECT_THAT(refusal({{0, 0, {}}}), HasSubstr("0 tokens after 0"));
    EXPECT_THAT(refusal({}), HasSubstr("expected at least one"));
    PackedTexts short_of_tokens = packed_texts(ctx, std::vector<TextToRead>{{0, 0, tokens}});
    short_of_tokens.texts[0].length = 4;
    EXPECT_THAT(message_of([&] { small->transformer.logits(ctx, short_of_tokens, cache); }),
                HasSubstr("packed texts of 4 tokens"));
    NextToken next(*small);
    EXPECT_THAT(message_of([&] {
                    next.logits(std::vector<NextToken::Text>{{1, tokens}});
                }),
                HasSubstr("a text in slot 1; expected 0 to 0"));
}

/// Its last token is read again.
TEST(BatchGeneration, ATextThatHasNotGrownHasTheSameLogits) {
    const auto small = a_model();
    NextToken next(*small, 2);
    const Tokens first{1, 2, 3}, second{4};
    const std::vector<NextToken::Text> texts{{0, first}, {1, second}};
    const auto logits = next.logits(texts), again = next.logits(texts);
    for (std::size_t text = 0; text < texts.size(); ++text)
        for (std::size_t v = 0; v < logits[text].size(); ++v)
            ASSERT_NEAR(again[text][v], logits[text][v], 1e-10) << "text " << text;
}

TEST(SampleTextBatch, GivesTheTextsOfItsPromptsAloneWithTheirPieces) {
    const Tokenizer tokenizer = Tokenizer::characters_of("\nabcdefg", "test");
    LanguageModel letters(
        Context(Device::cpu(), 1),
        {.layers = 1, .heads = 2, .width = 16, .context = 8, .vocabulary = tokenizer.vocab_size()},
        DType::f64, tokenizer);
    letters.parameters.initialize(letters.ctx, Seed{3});
    const std::vector<std::string> prompts{"ab", "", "gfedcbagfedcba", "c"};
    SampleOptions options{.tokens = 50, .stop = {"gg", "ba"}};
    std::vector<std::string> pieces(12);
    std::vector<SampledText> texts(12);
    sample_text_batch(letters, prompts, 3, options, 5,
                      {.on_text = [&](std::size_t i, std::string_view piece) { pieces[i] += piece; },
                       .on_end = [&](std::size_t i, SampledText text) { texts[i] = std::move(text); }});
    int stopped = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        options.prompt = prompts[i / 3];
        options.number = i % 3;
        const SampledText alone = sample_text(letters, options);
        EXPECT_EQ(texts[i].text, alone.text) << i;
        EXPECT_EQ(texts[i].tokens, alone.tokens) << i;
        EXPECT_EQ(texts[i].stopped, alone.stopped) << i;
        EXPECT_EQ(pieces[i], alone.text) << i;
        stopped += alone.stopped;
    }
    EXPECT_GT(stopped, 0);
    EXPECT_LT(stopped, 12);
    EXPECT_THAT(message_of([&] {
                    sample_text_batch(letters, std::vector<std::string>{"a", "axb"}, 1, {}, 2, {});
                }),
                HasSubstr("prompt 2"));
}

class BatchGenerationOnCuda : public test::CudaTest {};

/// TokenStepsOnCuda compares texts in float32.
TEST_F(BatchGenerationOnCuda, EveryModelEndsAllItsTextsInBfloat16) {
    const std::vector<Tokens> prompts = prompts_of_many_lengths();
    for (const GenerationCase& chosen : test::generation_cases()) {
        SCOPED_TRACE(chosen.name);
        const auto narrow = test::generation_model(chosen, DType::bf16, gpu());
        for (const Tokens& text : batch_of(*narrow, requests_of(prompts), {.tokens = 40}, 5))
            EXPECT_EQ(text.size(), 40u);
    }
}

}  // namespace
}  // namespace gradtile
