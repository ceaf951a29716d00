// Compares generation with a key-value cache and generation without a cache.
#include <sys/resource.h>

#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/generation/next_token.h>
#include <gradtile/tools/generation/sampler.h>
#include <gradtile/tools/generation/stop_texts.h>

#include <support/counted_memory.h>
#include <support/cuda_test.h>
#include <support/error_message.h>
#include <tools/generation/generation_cases.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;

using test::generation_cases;
using test::GenerationCase;

class Generation : public testing::TestWithParam<GenerationCase> {
  protected:
    static std::unique_ptr<LanguageModel> model(DType dtype) {
        return test::generation_model(GetParam(), dtype);
    }
    static constexpr std::array<std::int32_t, 5> prompt{3, 1, 4, 1, 5};
};

TEST_P(Generation, GreedyTokensEqualThoseWithoutACacheAlsoBeyondAFullContext) {
    const auto small = model(DType::f32);
    SampleOptions options{.tokens = 60, .temperature = 0.0};
    const std::vector<std::int32_t> cached = sample_tokens(*small, prompt, options);
    options.use_cache = false;
    EXPECT_EQ(cached, sample_tokens(*small, prompt, options));
    EXPECT_EQ(cached.size(), 60u);
}

TEST_P(Generation, LogitsEqualThoseOfTheWholeWindowInFloat64) {
    const auto small = model(DType::f64);
    const std::int64_t context = small->transformer.config.context;
    NextToken cached(*small), full_window(*small, /*slots=*/1, /*use_cache=*/false);
    std::vector<std::int32_t> text(prompt.begin(), prompt.end());
    TextWindow window(context);
    for (int i = 0; i < 40; ++i) {
        const std::vector<double> with = test::logits_after(cached, text),
                                  without = test::logits_after(full_window, text);
        const std::int64_t begin = window.begin_of(std::ssize(text));
        const std::span<const std::int32_t> visible(text.begin() + begin, text.end());
        // The whole window's logits in one pass, without a cache.
        const std::vector<double> expected = to_host(
            small->ctx,
            small->transformer.logits(small->ctx, from_host(small->ctx, visible, {1, std::ssize(visible)})));
        EXPECT_EQ(without, expected);
        // Logits are between 10 and 100, after sums whose errors are some hundred roundings of 1e-16.
        for (std::size_t v = 0; v < with.size(); ++v) ASSERT_NEAR(with[v], expected[v], 1e-10) << i;
        text.push_back(static_cast<std::int32_t>((7 * i + 2) % 40));
    }
}

INSTANTIATE_TEST_SUITE_P(Models, Generation, testing::ValuesIn(generation_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(Generation, APromptMayBeReadInPartsAndInBatches) {
    const ModelConfig config =
        as_llama({.layers = 2, .heads = 2, .width = 16, .context = 8, .vocabulary = 20});
    LanguageModel model(Context(Device::cpu(), 1), config, DType::f64, std::nullopt);
    model.parameters.initialize(model.ctx, Seed{2});
    const std::vector<std::int32_t> ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    const Tensor tokens = from_host(model.ctx, ids, {2, 6});
    const KeyValueCache cache(model.ctx, config, DType::f64, /*batch=*/2);
    // The tokens from `start` on of both texts.
    const auto read = [&](std::int64_t start, std::int64_t length) {
        std::vector<TextToRead> texts;
        for (const std::int64_t text : {0, 1})
            texts.push_back({.slot = text,
                             .start = start,
                             .tokens = std::span(ids).subspan(static_cast<std::size_t>(6 * text + start),
                                                              static_cast<std::size_t>(length))});
        return to_host(model.ctx, model.transformer.logits(model.ctx, packed_texts(model.ctx, texts), cache));
    };
    read(0, 4);
    const auto parts = read(4, 2);
    const auto full = to_host(model.ctx, model.transformer.logits(model.ctx, tokens));
    ASSERT_EQ(parts.size(), full.size());
    for (std::size_t i = 0; i < parts.size(); ++i) EXPECT_NEAR(parts[i], full[i], 1e-12);
    const std::vector<TextToRead> too_long{{.slot = 0, .start = 6, .tokens = std::span(ids).first(3)}};
    EXPECT_THAT(
        message_of([&] { model.transformer.logits(model.ctx, packed_texts(model.ctx, too_long), cache); }),
        HasSubstr("3 tokens after 6 in the cache; it holds 8"));
}

/// The largest memory that this process had, in bytes.
std::size_t resident_peak() {
    rusage usage{};
    EXPECT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
    return static_cast<std::size_t>(usage.ru_maxrss) << 10;
}

std::unique_ptr<LanguageModel> rotating_model(const Context& ctx, std::int64_t context,
                                              DType dtype = DType::f64) {
    const ModelConfig config =
        as_llama({.layers = 2, .heads = 4, .width = 32, .context = context, .vocabulary = 40});
    auto model = std::make_unique<LanguageModel>(ctx, config, dtype, std::nullopt);
    model->parameters.initialize(model->ctx, Seed{5});
    return model;
}

constexpr std::int64_t longest_context = 16'777'216;
constexpr std::size_t little_memory = 200'000'000;

TEST(Generation, MemoryDependsOnTheTextsAndNotOnTheContext) {
    const std::vector<std::int32_t> prompt{3, 1, 4, 1, 5};
    const auto allocator = std::make_shared<test::CountedMemory>();
    const Context counted = Context(Device::cpu(), 1).with_allocator(allocator);
    const std::size_t before = resident_peak();
    const auto drawn_with = [&](std::int64_t context, bool use_cache) {
        const auto model = rotating_model(counted, context);
        return sample_tokens(*model, prompt, {.tokens = 10, .use_cache = use_cache});
    };
    const std::vector<std::int32_t> drawn = drawn_with(64, true);
    EXPECT_EQ(drawn.size(), 10u);
    EXPECT_EQ(drawn_with(longest_context, true), drawn);
    EXPECT_EQ(drawn_with(longest_context, false), drawn);
    EXPECT_LT(allocator->peak, little_memory);
    EXPECT_LT(resident_peak() - before, little_memory);
}

/// One text of 900 tokens among 15 of 3. In blocks they take at most 15 + 15 + 15 blocks, and half as many
/// again that were allocated in advance; each text with memory for the longest one would take 16 * 15.
TEST(Generation, ShortTextsBesideALongOneTakeLittleMemory) {
    const auto allocator = std::make_shared<test::CountedMemory>();
    const auto model = rotating_model(Context(Device::cpu(), 2).with_allocator(allocator), 1000);
    const std::vector<std::int32_t> long_prompt(900, 3), prompt{3, 1, 4};
    std::vector<TokenRequest> requests(16, TokenRequest{prompt});
    requests[7].prompt = long_prompt;
    const auto peak_of = [&](std::span<const TokenRequest> some) {
        const std::size_t before = allocator->held;
        allocator->peak = before;
        sample_token_batch(*model, some, {.tokens = 20}, std::ssize(some), {});
        EXPECT_EQ(allocator->held, before);
        return allocator->peak - before;
    };
    const std::size_t alone = peak_of(std::span(requests).subspan(7, 1)), together = peak_of(requests);
    const double block = KeyValueCache::bytes_of_text(model->transformer.config, DType::f64, 1);
    // A text alone takes 15 blocks. One pass over all prompts has 945 tokens, and so 5% more activations than
    // a pass over 900.
    EXPECT_LT(static_cast<double>(together), 1.05 * static_cast<double>(alone) + 2 * 45 * block);
    EXPECT_LT(1.05 * static_cast<double>(alone) + 2 * 45 * block, 16 * 15 * block);
}

/// The blocks of a text that has ended are given to the next one: more texts take less than a block more.
TEST(Generation, TextsThatEndReturnTheirMemory) {
    const auto allocator = std::make_shared<test::CountedMemory>();
    const auto model = rotating_model(Context(Device::cpu(), 2).with_allocator(allocator), 1000);
    const std::vector<std::int32_t> prompt(300, 3);
    const auto peak_of = [&](std::size_t texts) {
        allocator->peak = allocator->held;
        const std::size_t before = allocator->held;
        const std::vector<TokenRequest> requests(texts, TokenRequest{prompt});
        sample_token_batch(*model, requests, {.tokens = 3}, /*batch=*/2, {});
        return allocator->peak - before;
    };
    const double block = KeyValueCache::bytes_of_text(model->transformer.config, DType::f64, 1);
    EXPECT_LT(static_cast<double>(peak_of(6)), static_cast<double>(peak_of(2)) + block);
}

TEST(Generation, AStepsAnglesTakeTheMemoryOfItsCache) {
    const auto model = rotating_model(Context(Device::cpu(), 1), longest_context);
    const Context& ctx = model->ctx;
    const ModelConfig& config = model->transformer.config;
    const KeyValueCache cache(ctx, config, DType::f64, /*batch=*/2, /*tokens=*/8);
    const Tensor tokens = from_host(ctx, std::vector<std::int32_t>{1, 2}, {2}),
                 slots = from_host(ctx, std::vector<std::int32_t>{0, 1}, {2}),
                 positions = zeros(ctx, {2}, DType::i32),
                 logits = empty(ctx, {2, config.vocabulary}, DType::f64);
    const attention::DecodeScratch scratch = model->transformer.step_scratch(ctx, cache, 2);
    const std::size_t before = resident_peak();
    model->transformer.next_logits(
        ctx, logits, tokens, {.positions = positions, .slots = slots, .cache = cache, .scratch = scratch});
    EXPECT_LT(resident_peak() - before, little_memory);
    EXPECT_EQ(message_of([&] { KeyValueCache(ctx, config, DType::f64, 1, config.context + 1); }),
              "key/value cache: 16777217 tokens; expected 1 to the context, 16777216");
}

void expect_caches_grow_with(const LanguageModel& model) {
    NextToken growing(model, /*slots=*/2), full_window(model, /*slots=*/2, /*use_cache=*/false);
    std::vector<std::int32_t> text, other{7};
    for (const std::size_t length : {3, 4, 255, 256, 257, 258, 600, 601, 1000, 1001}) {
        while (text.size() < length) text.push_back(static_cast<std::int32_t>(13 * text.size() % 40));
        other.push_back(static_cast<std::int32_t>(length % 40));
        const std::vector<NextToken::Text> texts{{0, text}, {1, other}};
        const auto logits = growing.logits(texts), expected = full_window.logits(texts);
        for (std::size_t i = 0; i < texts.size(); ++i)
            for (std::size_t v = 0; v < expected[i].size(); ++v)
                ASSERT_NEAR(logits[i][v], expected[i][v], 1e-10)
                    << "text " << i << ", " << length << " tokens";
    }
}

TEST(Generation, CachesGrowWithTheirTexts) {
    expect_caches_grow_with(*rotating_model(Context(Device::cpu(), 2), 1000));
}

/// Three texts of which each grows by a token in turn, so that their blocks are not neighbours. Another text
/// takes the blocks of one that ends. Some calls read several tokens.
void expect_texts_in_scattered_blocks(const LanguageModel& model, double epsilon, bool reserved) {
    SCOPED_TRACE(reserved);
    NextToken growing(model, /*slots=*/3), full_window(model, /*slots=*/3, /*use_cache=*/false);
    // A pool that need not grow does not bring a text's blocks together.
    if (reserved) growing.reserve(1000, 3);
    std::vector<std::vector<std::int32_t>> texts(3);
    const auto lengthen = [&](std::size_t i, std::size_t tokens) {
        for (std::size_t n = 0; n < tokens; ++n)
            texts[i].push_back(static_cast<std::int32_t>((13 * texts[i].size() + 5 * i + n) % 40));
    };
    for (const std::size_t i : {0, 1, 2}) lengthen(i, 60 * i + 10);
    for (int step = 0; step < 200; ++step) {
        if (step == 90) {
            growing.begin_text(1);
            texts[1].clear();
            lengthen(1, 200);
        }
        std::vector<NextToken::Text> views;
        for (std::size_t i = 0; i < texts.size(); ++i)
            views.push_back({static_cast<std::int64_t>(i), texts[i]});
        const auto logits = growing.logits(views);
        for (std::size_t i = 0; step % 40 == 39 && i < texts.size(); ++i) {
            full_window.begin_text(static_cast<std::int64_t>(i));
            const auto expected = full_window.logits(std::span(views).subspan(i, 1)).front();
            double largest = 0;
            for (const double logit : expected) largest = std::max(largest, std::abs(logit));
            // 10,000 roundings, relative to the largest logit. A wrong key changes a logit by far more.
            for (std::size_t v = 0; v < expected.size(); ++v)
                ASSERT_NEAR(logits[i][v], expected[v], 1e4 * epsilon * largest)
                    << "text " << i << ", step " << step;
        }
        for (const std::size_t i : {0, 1, 2}) lengthen(i, step % 40 == 38 ? 4 : 1);
    }
}

TEST(Generation, TextsInScatteredBlocksHaveTheLogitsOfWholeTexts) {
    const auto model = rotating_model(Context(Device::cpu(), 2), 1000);
    for (const bool reserved : {false, true}) expect_texts_in_scattered_blocks(*model, 0x1p-53, reserved);
}

class GenerationOnCuda : public test::CudaTest {};

/// Graphs are replayed while the table changes, and captured again when the pool grows.
TEST_F(GenerationOnCuda, TextsInScatteredBlocksHaveTheLogitsOfWholeTexts) {
    const auto model = rotating_model(gpu(), 1000, DType::f32);
    for (const bool reserved : {false, true}) expect_texts_in_scattered_blocks(*model, 0x1p-24, reserved);
}

/// Also when the cache is full, whose last token leaves its row for a token that needs the longer cache.
TEST(Generation, CachesGrowWithWhatTheNextTokenReads) {
    ModelConfig config = as_llama({.layers = 2, .heads = 4, .width = 32, .context = 1000, .vocabulary = 40});
    config.key_offset = true;
    config.rotary_width = 4;
    LanguageModel model(Context(Device::cpu(), 2), config, DType::f64, std::nullopt);
    model.parameters.initialize(model.ctx, Seed{5});
    axpy(model.ctx, model.parameters.values(), 7.0, model.parameters.values());  // so that keys matter
    expect_caches_grow_with(model);
}

TEST(TextWindow, DropsTheOldestHalfWhenTheContextIsFull) {
    TextWindow window(8);
    std::vector<std::int64_t> begins;
    for (std::int64_t length = 6; length <= 17; ++length) begins.push_back(window.begin_of(length));
    EXPECT_THAT(begins, ElementsAre(0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12));
    EXPECT_EQ(TextWindow(8).begin_of(20), 12);  // a long prompt: the last 8 tokens
    TextWindow one(1);
    EXPECT_EQ(one.begin_of(1), 0);
    EXPECT_EQ(one.begin_of(2), 1);
}

TEST(StopTexts, EndTheTextWhereverItIsCutIntoPieces) {
    const std::string text = "one\nUser: two\nEnd";
    for (std::size_t size = 1; size <= text.size(); ++size) {
        StopTexts stop({"\nUser:", "never", ""});
        std::string result;
        for (std::size_t i = 0; i < text.size(); i += size) result += stop.next(text.substr(i, size));
        result += stop.finish();
        EXPECT_EQ(result, "one") << size;
        EXPECT_TRUE(stop.found());
    }
}

TEST(StopTexts, HoldBackOnlyWhatMayBecomeAStopText) {
    StopTexts stop({"abcd", "cx"});
    EXPECT_EQ(stop.next("zab"), "z");
    EXPECT_EQ(stop.next("c"), "");
    EXPECT_EQ(stop.next("e"), "abce");
    EXPECT_EQ(stop.next("ab"), "");
    EXPECT_EQ(stop.finish(), "ab");
    EXPECT_FALSE(stop.found());
    StopTexts inner({"abcd", "cx"});
    EXPECT_EQ(inner.next("abcx"), "ab");
    EXPECT_TRUE(inner.found());
}

struct LetterModel {
    LetterModel() {
        const Tokenizer tokenizer = Tokenizer::characters_of("\nabcdefg", "test");
        model = std::make_unique<LanguageModel>(
            Context(Device::cpu(), 1),
            ModelConfig{
                .layers = 1, .heads = 2, .width = 16, .context = 8, .vocabulary = tokenizer.vocab_size()},
            DType::f32, tokenizer);
        model->parameters.initialize(model->ctx, Seed{3});
    }
    std::unique_ptr<LanguageModel> model;
};

TEST(SampleText, GivesItsPiecesAsTheyAreDrawn) {
    const LetterModel letters;
    std::string pieces;
    int calls = 0;
    const SampledText sampled =
        sample_text(*letters.model, {.prompt = "ab", .tokens = 30}, [&](std::string_view piece) {
            pieces += piece;
            ++calls;
        });
    EXPECT_EQ(pieces, sampled.text);
    EXPECT_EQ(calls, 30);
    EXPECT_EQ(sampled.tokens.size(), 30u);
    EXPECT_FALSE(sampled.stopped);
    EXPECT_EQ("ab" + sampled.text, sample(*letters.model, {.prompt = "ab", .tokens = 30}));
}

TEST(SampleText, EndsBeforeAStopTextAndDrawsNoFurther) {
    const LetterModel letters;
    const SampledText all = sample_text(*letters.model, {.prompt = "a", .tokens = 60});
    const std::string stop = all.text.substr(20, 3);
    const SampledText cut = sample_text(*letters.model, {.prompt = "a", .tokens = 60, .stop = {stop}});
    EXPECT_TRUE(cut.stopped);
    EXPECT_EQ(cut.text, all.text.substr(0, all.text.find(stop)));
    EXPECT_EQ(cut.tokens.size(), cut.text.size() + stop.size());
}

TEST(SampleText, NumbersGiveOtherTextsWithTheSameSeed) {
    const LetterModel letters;
    const auto text = [&](std::uint64_t number) {
        return sample_text(*letters.model, {.prompt = "a", .tokens = 40, .number = number}).text;
    };
    EXPECT_NE(text(0), text(1));
    EXPECT_NE(text(1), text(2));
    EXPECT_EQ(text(1), text(1));
}

TEST(SampleText, NeverEndsAPieceWithinACharacter) {
    LanguageModel model(Context(Device::cpu(), 1),
                        {.layers = 1, .heads = 1, .width = 8, .context = 8, .vocabulary = 256}, DType::f32,
                        Tokenizer::bytes());
    model.parameters.initialize(model.ctx, Seed{1});
    std::string pieces;
    const SampledText sampled = sample_text(model, {.prompt = "\xc3", .tokens = 200, .seed = 4},
                                            [&](std::string_view piece) { pieces += piece; });
    EXPECT_EQ(pieces, sampled.text);
    EXPECT_EQ(pieces, model.tokenizer->decode(sampled.tokens));
}

TEST(ChooseToken, MinPKeepsTokensThatAreLikelyEnough) {
    const std::vector<double> logits{std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};
    const auto drawn = [&](const SampleOptions& options) {
        std::map<std::int32_t, int> count;
        for (int i = 0; i < 1000; ++i) ++count[choose_token(logits, options, (i + 0.5) / 1000)];
        return count;
    };
    EXPECT_THAT(drawn({.min_p = 0.51}), ElementsAre(testing::Key(1), testing::Key(3)));
    EXPECT_EQ(drawn({.min_p = 0.49}).size(), 3u);
    EXPECT_EQ(drawn({.min_p = 1.0}).size(), 1u);
    // With temperature 1/2 the probabilities are as 1, 16, 4 and 9.
    EXPECT_THAT(drawn({.temperature = 0.5, .min_p = 0.3}), ElementsAre(testing::Key(1), testing::Key(3)));
}

TEST(RepetitionPenalty, DividesPositiveAndMultipliesNegativeLogitsOfSeenTokensOnce) {
    std::vector<double> logits{2.0, -2.0, 3.0, 0.5};
    penalise_repetition(logits, std::vector<std::int32_t>{0, 1, 0, 1, 9}, 2.0);
    EXPECT_THAT(logits, ElementsAre(1.0, -4.0, 3.0, 0.5));
    penalise_repetition(logits, std::vector<std::int32_t>{2}, 1.0);
    EXPECT_THAT(logits, ElementsAre(1.0, -4.0, 3.0, 0.5));
}

TEST(SampleText, RefusesValuesOutsideTheirRanges) {
    const LetterModel letters;
    EXPECT_THAT(message_of([&] { sample(*letters.model, {.prompt = "a", .min_p = 1.5}); }),
                HasSubstr("min-p"));
    EXPECT_THAT(message_of([&] { sample(*letters.model, {.prompt = "a", .repetition_penalty = 0.0}); }),
                HasSubstr("repetition-penalty"));
}

}  // namespace
}  // namespace gradtile
