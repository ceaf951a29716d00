// Multiple-choice questions: their files and their scores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/vocabulary.h>
#include <gradtile/tools/evaluation/evaluate.h>
#include <gradtile/tools/evaluation/multiple_choice.h>
#include <gradtile/train/data/examples.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;

/// In a model of one layer no token after a prompt depends on what the prompt's tokens see.
std::unique_ptr<LanguageModel> byte_model(bool prefix = false) {
    auto model = std::make_unique<LanguageModel>(Context(Device::cpu(), 1),
                                                 ModelConfig{.layers = prefix ? 2 : 1,
                                                             .heads = 2,
                                                             .width = 16,
                                                             .context = 12,
                                                             .vocabulary = 256,
                                                             .prefix = prefix},
                                                 DType::f64, Tokenizer::bytes());
    model->parameters.initialize(model->ctx, Seed{4});
    // Larger weights than the initial ones, so that choices have different losses.
    for (const Parameter& parameter : model->parameters.parameters())
        if (parameter.shape().rank() == 2) axpy(model->ctx, parameter.value(), 9.0, parameter.value());
    return model;
}

/// The loss over `text`'s bytes after the first `begin`, byte by byte from the logits.
double loss_of_end(const LanguageModel& model, const std::string& text, std::size_t begin) {
    double sum = 0.0;
    for (std::size_t t = begin; t < text.size(); ++t) {
        const std::vector<std::int32_t> before = model.tokenizer->encode(text.substr(0, t), "test");
        const std::vector<double> logits = to_host(
            model.ctx,
            model.transformer.logits(model.ctx, from_host(model.ctx, before, {1, std::ssize(before)})));
        double normaliser = 0.0;
        for (const double logit : logits) normaliser += std::exp(logit);
        sum += std::log(normaliser) - logits[static_cast<unsigned char>(text[t])];
    }
    return sum;
}

TEST(MultipleChoice, ScoresTheTokensOfEachChoiceAfterTheContext) {
    const auto model = byte_model();
    const std::vector<ChoiceQuestion> questions{{"abc", {"de", "f", "ghijk"}, 0},
                                                {"a long context that is cut ", {"de", "xy"}, 1},
                                                {"abc", {"\nde", "zzz"}, 1}};
    const ChoiceEvaluation result = evaluate_choices(*model, questions, {.batch = 2});
    ASSERT_EQ(result.answers.size(), 3u);
    const auto expect_loss = [&](std::size_t question, std::size_t choice, const std::string& text,
                                 std::size_t begin) {
        const ChoiceLoss& loss = result.answers[question].losses[choice];
        EXPECT_EQ(loss.tokens, std::ssize(text) - static_cast<std::ptrdiff_t>(begin));
        EXPECT_NEAR(loss.sum, loss_of_end(*model, text, begin), 1e-10);
    };
    expect_loss(0, 0, "abc de", 3);
    expect_loss(0, 1, "abc f", 3);
    expect_loss(0, 2, "abc ghijk", 3);
    // The blank that ends the context belongs to the choice. 13 bytes: the last one is a target only.
    expect_loss(1, 0, "hat is cut de", 10);
    expect_loss(1, 1, "hat is cut xy", 10);
    expect_loss(2, 0, "abc\nde", 3);
    expect_loss(2, 1, "abc zzz", 3);

    std::size_t right = 0;
    for (std::size_t i = 0; i < 3; ++i) {
        const ChoiceAnswer& answer = result.answers[i];
        for (const ChoiceLoss& loss : answer.losses) {
            EXPECT_LE(answer.losses[answer.by_mean].mean(), loss.mean());
            EXPECT_LE(answer.losses[answer.by_sum].sum, loss.sum);
        }
        right += answer.by_mean == questions[i].label;
    }
    EXPECT_DOUBLE_EQ(result.accuracy, static_cast<double>(right) / 3);
    EXPECT_DOUBLE_EQ(result.chance, (1.0 / 3 + 0.5 + 0.5) / 3);
    EXPECT_NEAR(result.centred(), (result.accuracy - result.chance) / (1 - result.chance), 1e-15);
}

/// The loss is that of the context as the prompt and the choice as its completion.
TEST(MultipleChoice, AModelWithPrefixReadsTheContextInBothDirections) {
    const auto model = byte_model(/*prefix=*/true);
    const ChoiceEvaluation result =
        evaluate_choices(*model, std::vector<ChoiceQuestion>{{"abc", {"de", "f"}, 0}}, {.batch = 2});
    const char* const texts[] = {"abc de", "abc f"};
    for (std::size_t choice = 0; choice < 2; ++choice) {
        const std::vector<std::int32_t> ids = model->tokenizer->encode(texts[choice], "test");
        Examples examples{.begins = {0, std::ssize(ids)},
                          .is_target = std::vector<bool>(ids.size(), true),
                          .kind = DocumentKind::completions};
        std::fill_n(examples.is_target.begin(), 3, false);
        const Evaluation expected =
            evaluate(*model, TokenSequence::from_examples(ids, std::move(examples), "choice"),
                     {.packing = {{DocumentRule::Kind::examples}, 1, DocumentMask::prefix_ranges}});
        const ChoiceLoss& found = result.answers[0].losses[choice];
        EXPECT_EQ(found.tokens, expected.targets);
        EXPECT_NEAR(found.sum, expected.loss * static_cast<double>(expected.targets), 1e-10);
        EXPECT_GT(std::abs(found.sum - loss_of_end(*model, texts[choice], 3)), 1e-6) << "causal";
    }
}

TEST(MultipleChoice, WhiteSpaceAfterTheContextBelongsToTheChoice) {
    const auto model = byte_model();
    // Any white space, as Python has it: U+2003, no-break space, line breaks.
    const std::vector<std::string> ends{" ", "  ", "\n", "\xE2\x80\x83", "\xC2\xA0\x1F", "\r\n"};
    for (const std::string& end : ends) {
        const ChoiceEvaluation result = evaluate_choices(*model, {{"ab" + end, {"cd", " e"}, 0}});
        EXPECT_EQ(result.answers[0].losses[0].tokens, std::ssize(end) + 2);
        EXPECT_NEAR(result.answers[0].losses[0].sum, loss_of_end(*model, "ab" + end + "cd", 2), 1e-10);
        EXPECT_NEAR(result.answers[0].losses[1].sum, loss_of_end(*model, "ab" + end + " e", 2), 1e-10);
    }
    EXPECT_EQ(message_of([&] {
                  evaluate_choices(*model, {{" \n", {"a", "b"}, 0}});
              }),
              "question 1: context: only white space; expected a text");
}

TEST(MultipleChoice, OfEqualChoicesTheFirstIsTakenAndBatchesDoNotMatter) {
    const auto model = byte_model();
    const std::vector<ChoiceQuestion> questions{{"abc", {"de", "de"}, 0}, {"b", {"longer one", "x"}, 1}};
    std::int64_t done = 0;
    const ChoiceEvaluation one = evaluate_choices(
        *model, questions, {.batch = 1, .on_progress = [&](std::int64_t count, std::int64_t all) {
                                EXPECT_EQ(all, 4);
                                EXPECT_EQ(count, ++done);
                            }});
    EXPECT_EQ(done, 4);
    EXPECT_EQ(one.answers[0].by_mean, 0u);
    EXPECT_EQ(one.answers[0].by_sum, 0u);
    const ChoiceEvaluation all = evaluate_choices(*model, questions, {.batch = 100});
    for (std::size_t i = 0; i < 2; ++i)
        for (std::size_t choice = 0; choice < 2; ++choice)
            EXPECT_NEAR(all.answers[i].losses[choice].sum, one.answers[i].losses[choice].sum, 1e-10);
}

TEST(Evaluation, ABatchOfNothingIsRefused) {
    const auto model = byte_model();
    const TokenSequence tokens(std::vector<std::int32_t>(50, 7), "tokens");
    for (const std::int64_t batch : {0, -3}) {
        const std::string expected = concat("eval: batch: ", batch, "; expected at least 1");
        EXPECT_EQ(message_of([&] { evaluate(*model, tokens, {.batch = batch}); }), expected);
        EXPECT_EQ(message_of([&] {
                      evaluate_choices(*model, {{"a", {"b", "c"}, 0}}, {.batch = batch});
                  }),
                  expected);
    }
}

/// Weights after a step that was too large: no answer has the lowest loss.
TEST(Evaluation, ALossThatIsNotFiniteIsRefused) {
    const auto model = byte_model();
    fill(model->ctx, model->parameters.parameters().front().value(),
         std::numeric_limits<double>::quiet_NaN());
    const std::vector<ChoiceQuestion> questions{{"ab", {"c", "d"}, 0}};
    EXPECT_THAT(message_of([&] { evaluate_choices(*model, questions); }),
                MatchesRegex("eval: question 1: choice 1: the loss is -?nan; expected a finite loss"));
    EXPECT_THAT(message_of([&] { evaluate(*model, TokenSequence::from_bytes("abc", "text")); }),
                MatchesRegex("eval: the loss of target 0 is -?nan; expected a finite loss"));
}

std::vector<ChoiceQuestion> questions_in(std::string_view text) {
    return read_choice_questions(TextReader(text, "t.jsonl"));
}

TEST(MultipleChoice, ReadsTheMembersOfHellaSwagAndTheirOtherNames) {
    const std::vector<ChoiceQuestion> questions = questions_in(
        R"({"ind": 4, "ctx": "a", "endings": ["b", "c", "d", "e"], "label": "3", "split": "val"})"
        "\n"
        R"({"context": "x", "choices": ["y", "z"], "label": 0})");
    ASSERT_EQ(questions.size(), 2u);
    EXPECT_EQ(questions[0].context, "a");
    EXPECT_THAT(questions[0].choices, ElementsAre("b", "c", "d", "e"));
    EXPECT_EQ(questions[0].label, 3u);
    EXPECT_EQ(questions[1].label, 0u);
}

/// A wrong line, then lines without an end.
class WrongLine final : public ByteSource {
  public:
    explicit WrongLine(std::int64_t& read) : read_(read) {}
    std::size_t read(std::span<std::byte> out) override {
        std::ranges::fill(out, std::byte{'\n'});
        if (read_ == 0) out.front() = std::byte{'3'};
        read_ += std::ssize(out);
        if (read_ > 100'000'000) throw Error("all of it was read");
        return out.size();
    }
    std::int64_t file_bytes() const override { return read_; }

  private:
    std::int64_t& read_;
};

TEST(MultipleChoice, AWrongLineIsReportedBeforeTheNextOnesAreRead) {
    std::int64_t read = 0;
    EXPECT_THAT(
        message_of([&] { read_choice_questions(TextReader(std::make_unique<WrongLine>(read), "t.jsonl")); }),
        HasSubstr("t.jsonl: line 1: expected an object"));
    EXPECT_LT(read, 1'000'000);
}

TEST(MultipleChoice, NamesTheLineThatIsWrong) {
    const auto refusal = [](const std::string& line) {
        return message_of([&] { questions_in("\n" + line); });
    };
    EXPECT_THAT(refusal("3"), HasSubstr("t.jsonl: line 2: expected an object"));
    EXPECT_THAT(refusal("{"), HasSubstr("t.jsonl: line 2: not JSON"));
    EXPECT_THAT(refusal(R"({"endings":["a","b"],"label":0})"), HasSubstr("expected a member ctx or context"));
    EXPECT_THAT(refusal(R"({"ctx":"a","context":"a","endings":["a","b"],"label":0})"),
                HasSubstr("ctx or context"));
    EXPECT_THAT(refusal(R"({"ctx":"","endings":["a","b"],"label":0})"), HasSubstr("a text as the context"));
    EXPECT_THAT(refusal(R"({"ctx":"a","label":0})"), HasSubstr("endings or choices"));
    EXPECT_THAT(refusal(R"({"ctx":"a","endings":["a"],"label":0})"), HasSubstr("at least two choices"));
    EXPECT_THAT(refusal(R"({"ctx":"a","endings":["a",2],"label":0})"), HasSubstr("expected texts"));
    for (const char* const label : {"2", "-1", "1.0", "\"\"", "\"1x\"", "\"99999999999999999999\"", "null",
                                    "[0]", "18446744073709551615"})
        EXPECT_THAT(refusal(concat(R"({"ctx":"a","endings":["a","b"],"label":)", label, "}")),
                    HasSubstr("expected the index of a choice, 0 to 1"))
            << label;
    EXPECT_THAT(refusal(R"({"ctx":"a","endings":["a","b"]})"), HasSubstr("label null"));
    EXPECT_THAT(message_of([] { questions_in(""); }), HasSubstr("has no question"));
    const auto model = byte_model();
    EXPECT_THAT(message_of([&] {
                    evaluate_choices(*model, {{"a", {"b", std::string(12, 'c')}, 0}});
                }),
                HasSubstr("question 1: choice 2: 13 tokens; the context of the model is 12"));
}

}  // namespace
}  // namespace gradtile
