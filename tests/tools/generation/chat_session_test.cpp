// Tests conversations with a model: which part of the history the model sees, and how an answer ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/generation/chat_session.h>

#include <support/error_message.h>
#include <tools/generation/generation_cases.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::HasSubstr;

std::unique_ptr<LanguageModel> random_model(std::int64_t context, bool prefix = false) {
    // In a model of one layer no token after a prompt depends on what the prompt's tokens see.
    const ModelConfig config{.layers = prefix ? 2 : 1,
                             .heads = 2,
                             .width = 16,
                             .context = context,
                             .vocabulary = 256,
                             .prefix = prefix};
    auto model =
        std::make_unique<LanguageModel>(Context(Device::cpu(), 1), config, DType::f32, Tokenizer::bytes());
    model->parameters.initialize(model->ctx, Seed{3});
    return model;
}

ChatOptions greedy(std::int64_t tokens) {
    return {.chat_template = ChatTemplate::chatml,
            .system = "Be kind.",
            .sampling = {.tokens = tokens, .temperature = 0.0}};
}

std::vector<std::int32_t> encoded(const ChatFormat& format, std::vector<ChatMessage> messages) {
    messages.insert(messages.begin(), {ChatRole::system, "Be kind."});
    return format.prompt(messages, "test");
}

TEST(ChatSession, AnswersAreWhatTheModelWritesAfterThePrompt) {
    const auto model = random_model(400);
    ChatSession session(*model, greedy(12));
    std::string streamed;
    const ChatAnswer first = session.answer("Hi", [&](std::string_view piece) { streamed += piece; });
    EXPECT_EQ(first.end, ChatAnswer::End::tokens);
    EXPECT_EQ(first.text, streamed);
    const SampleOptions sampling{.tokens = 12, .temperature = 0.0};
    const auto expected =
        sample_tokens(*model, encoded(session.format(), {{ChatRole::user, "Hi"}}), sampling);
    EXPECT_EQ(first.text, model->tokenizer->decode(expected));

    // For the second answer the model reads only the new tokens; the answer is the same as if it read all.
    const ChatAnswer second = session.answer("And now?");
    const auto again = sample_tokens(
        *model,
        encoded(session.format(),
                {{ChatRole::user, "Hi"}, {ChatRole::assistant, first.text}, {ChatRole::user, "And now?"}}),
        sampling);
    EXPECT_EQ(second.text, model->tokenizer->decode(again));
    EXPECT_EQ(session.history().size(), 4u);
}

/// All messages before an answer are its prompt, which a model with prefix reads in both directions.
TEST(ChatSession, AModelWithPrefixReadsAllMessagesInBothDirections) {
    const auto model = random_model(400, /*prefix=*/true);
    ChatSession session(*model, greedy(12));
    const ChatAnswer first = session.answer("Hi"), second = session.answer("And now?");
    const SampleOptions sampling{.tokens = 12, .temperature = 0.0, .use_cache = false};
    const auto expected = sample_tokens(
        *model,
        encoded(session.format(),
                {{ChatRole::user, "Hi"}, {ChatRole::assistant, first.text}, {ChatRole::user, "And now?"}}),
        sampling);
    EXPECT_EQ(second.text, model->tokenizer->decode(expected));
    // Messages are dropped before an answer only.
    const auto small = random_model(100, /*prefix=*/true);
    ChatSession full(*small, greedy(100));
    EXPECT_EQ(full.answer("Hello").end, ChatAnswer::End::context);
}

TEST(ChatSession, TheOldestTurnsAreDroppedAndTheSystemMessageStays) {
    const auto model = random_model(160);
    ChatSession session(*model, greedy(10));
    std::int64_t dropped = 0;
    for (int i = 0; i < 6; ++i) {
        const std::string message = std::string("message ") + static_cast<char>('0' + i);
        const ChatAnswer answer = session.answer(message);
        dropped += answer.dropped_messages;
        const std::vector<ChatMessage>& history = session.history();
        EXPECT_EQ(history.size() % 2, 0u) << "a turn is dropped with its answer";
        EXPECT_EQ(history.front().role, ChatRole::user);
        EXPECT_EQ(history[history.size() - 2].content, message);
        // The answer must be the one that the model draws when it reads only the visible history.
        std::vector<ChatMessage> visible(history.begin(), history.end() - 1);
        const std::vector<std::int32_t> prompt = encoded(session.format(), visible);
        EXPECT_LE(prompt.size(), 120u) << "a quarter of the context is free";
        EXPECT_EQ(answer.text, model->tokenizer->decode(
                                   sample_tokens(*model, prompt, {.tokens = 10, .temperature = 0.0})));
    }
    EXPECT_GT(dropped, 4);
    EXPECT_EQ(dropped + std::ssize(session.history()), 12);
}

TEST(ChatSession, TurnsAreDroppedDuringAnAnswerAndTheAnswerEndsWhenNoneIsLeft) {
    const auto model = random_model(160);
    ChatSession session(*model, greedy(1));
    session.answer("first");
    const ChatAnswer answer = ChatSession(*model, greedy(1000)).answer("alone");
    EXPECT_EQ(answer.end, ChatAnswer::End::context);
    // The model reads 160 tokens, as many as its context, before it draws the last one.
    const std::size_t prompt = encoded(session.format(), {{ChatRole::user, "alone"}}).size();
    EXPECT_EQ(session.format().encode(std::vector<ChatMessage>{}, "test").ids.size(), 0u);
    EXPECT_EQ(prompt + answer.text.size(), 161u);

    const auto larger_model = random_model(240);
    ChatSession longer(*larger_model, greedy(80));
    longer.answer("first", {}, [calls = 0]() mutable { return ++calls > 3; });
    EXPECT_EQ(longer.history().size(), 2u);
    const ChatAnswer second = longer.answer("second");
    EXPECT_EQ(second.dropped_messages, 2);
    EXPECT_EQ(second.end, ChatAnswer::End::tokens);
    EXPECT_EQ(second.text.size(), 80u);
    EXPECT_EQ(longer.history().front().content, "second");
}

TEST(ChatSession, AMessageThatDoesNotFitLeavesTheHistoryAsItWas) {
    const auto model = random_model(160);
    ChatSession session(*model, greedy(5));
    session.answer("Hi");
    EXPECT_THAT(
        message_of([&] { session.answer(std::string(120, 'a')); }),
        HasSubstr("tokens with its template and the system message; the context of the model is 160"));
    EXPECT_EQ(session.history().size(), 2u);
    EXPECT_EQ(session.history().front().content, "Hi");
    EXPECT_NO_THROW(session.answer("again"));
}

TEST(ChatSession, AnAnswerEndsAtAStopTextAndWhenItIsInterrupted) {
    const auto model = random_model(200);
    const std::string full_text = ChatSession(*model, greedy(40)).answer("Hi").text;
    ChatOptions options = greedy(40);
    options.sampling.stop = {full_text.substr(20, 3)};
    const ChatAnswer stopped = ChatSession(*model, options).answer("Hi");
    EXPECT_EQ(stopped.end, ChatAnswer::End::stop_text);
    EXPECT_EQ(stopped.text, full_text.substr(0, full_text.find(options.sampling.stop.front())));

    ChatSession session(*model, greedy(40));
    const ChatAnswer interrupted = session.answer("Hi", {}, [calls = 0]() mutable { return ++calls > 7; });
    EXPECT_EQ(interrupted.end, ChatAnswer::End::interrupted);
    EXPECT_EQ(interrupted.text, full_text.substr(0, 7));
    EXPECT_EQ(session.history().back().content, interrupted.text);
}

TEST(ChatSession, NeedsATokenizer) {
    const ModelConfig config{.layers = 1, .heads = 2, .width = 16, .context = 8, .vocabulary = 16};
    const LanguageModel model(Context(Device::cpu(), 1), config, DType::f32, std::nullopt);
    EXPECT_THAT(message_of([&] { ChatSession(model, {}); }), HasSubstr("has no tokenizer"));
}

TEST(ChatSession, ATemplateThatTheTokenizerCannotEncodeIsRefusedBeforeTheFirstMessage) {
    const ModelConfig config{.layers = 1, .heads = 2, .width = 16, .context = 8, .vocabulary = 2};
    const LanguageModel model(Context(Device::cpu(), 1), config, DType::f32,
                              Tokenizer::characters_of("ab", "text"));
    EXPECT_THAT(message_of([&] { ChatSession(model, {.chat_template = ChatTemplate::plain}); }),
                HasSubstr("chat template plain: character U+000A"));
    const auto bytes = random_model(100);
    EXPECT_NO_THROW(ChatSession(*bytes, {.chat_template = ChatTemplate::plain}));
}

/// A text that does not continue the one before may share its beginning.
TEST(NextToken, ReadsOnlyWhatDiffersFromTheTextBefore) {
    const auto model = random_model(16);
    NextToken cached(*model);
    const std::vector<std::vector<std::int32_t>> texts{{1, 2, 3},
                                                       {1, 2, 3, 4},
                                                       {1, 2, 9},
                                                       {1, 2},
                                                       {1, 2},
                                                       {7},
                                                       {1, 2, 9, 9, 9},
                                                       std::vector<std::int32_t>(16, 5),
                                                       std::vector<std::int32_t>(17, 5),
                                                       {5, 5},
                                                       {5, 6, 7}};
    for (const std::vector<std::int32_t>& text : texts) {
        NextToken full_window(*model, /*slots=*/1, /*use_cache=*/false);
        const std::vector<double> expected = test::logits_after(full_window, text),
                                  logits = test::logits_after(cached, text);
        // A 17-token text that continues a 16-token text sees only the newest half of the context.
        if (text.size() == 17) continue;
        for (std::size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-5);
    }
}

}  // namespace
}  // namespace gradtile
