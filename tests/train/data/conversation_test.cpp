// Conversations: their files, templates, targets and windows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/layers/vocabulary.h>
#include <gradtile/train/data/chat_template.h>
#include <gradtile/train/data/data_loader.h>
#include <gradtile/train/data/dataset.h>
#include <gradtile/train/data/examples.h>

#include <support/documents.h>
#include <support/error_message.h>
#include <support/temporary_directory.h>

namespace gradtile {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using testing::ElementsAre;
using testing::HasSubstr;

const Conversation two_turns{{ChatRole::system, "Be kind."},
                             {ChatRole::user, "Hi"},
                             {ChatRole::assistant, "Hello\nyou"},
                             {ChatRole::user, "  Bye "},
                             {ChatRole::assistant, "See you"}};

/// A conversation's text, with brackets around the tokens that are targets.
std::string marked(ChatTemplate chat_template, const Conversation& conversation,
                   TrainOn train_on = TrainOn::answers) {
    const EncodedDocument encoded =
        ChatFormat(chat_template, Tokenizer::bytes()).encode(conversation, "test", train_on);
    EXPECT_EQ(encoded.ids.size(), encoded.is_target.size());
    std::string text;
    bool inside = false;
    for (std::size_t i = 0; i < encoded.ids.size(); ++i) {
        if (encoded.is_target[i] != inside) text += inside ? ']' : '[';
        inside = encoded.is_target[i];
        text += static_cast<char>(encoded.ids[i]);
    }
    return inside ? text + "]" : text;
}

TEST(ChatTemplates, OnlyTheAnswersWithTheirEndsAreTargets) {
    EXPECT_EQ(marked(ChatTemplate::plain, two_turns),
              "\nSystem: Be kind.\nUser: Hi\nAssistant:[ Hello\nyou\nUser:]   Bye \nAssistant:[ See "
              "you\nUser:]");
    EXPECT_EQ(
        marked(ChatTemplate::chatml, two_turns),
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        "[Hello\nyou<|im_end|>]\n<|im_start|>user\n  Bye <|im_end|>\n<|im_start|>assistant\n"
        "[See you<|im_end|>]\n");
    EXPECT_EQ(marked(ChatTemplate::llama3, two_turns),
              "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n[Hello\nyou<|eot_id|>]"
              "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n[See you<|eot_id|>]");
}

TEST(ChatTemplates, WithTrainOnAllEveryTokenButTheFirstIsATarget) {
    for (const ChatTemplate chat_template :
         {ChatTemplate::plain, ChatTemplate::chatml, ChatTemplate::llama3}) {
        const std::string text = marked(chat_template, two_turns, TrainOn::all);
        EXPECT_EQ(text.find('['), 1u);
        EXPECT_EQ(text.find(']'), text.size() - 1);
    }
}

TEST(ChatTemplates, AMessageSaysWhetherItIsTrained) {
    Conversation turns = two_turns;
    turns[2].train = false;
    EXPECT_EQ(
        marked(ChatTemplate::plain, turns),
        "\nSystem: Be kind.\nUser: Hi\nAssistant: Hello\nyou\nUser:   Bye \nAssistant:[ See you\nUser:]");
    EXPECT_EQ(
        marked(ChatTemplate::plain, turns, TrainOn::all),
        "\n[System: Be kind.\nUser: Hi]\nAssistant: Hello\nyou[\nUser:   Bye \nAssistant: See you\nUser:]");
    turns[1].train = true;
    turns[4].train = false;
    EXPECT_EQ(
        marked(ChatTemplate::chatml, turns),
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n[Hi<|im_end|>]\n<|im_start|>assistant\n"
        "Hello\nyou<|im_end|>\n<|im_start|>user\n  Bye <|im_end|>\n<|im_start|>assistant\nSee "
        "you<|im_end|>\n");
}

TEST(ChatTemplates, ToolsAndTheirCallsAreText) {
    const Conversation turns{{ChatRole::user, "Sum?"},
                             {ChatRole::assistant, "Let me see.", {{"add", "{\"a\": 1}"}, {"wait", "{}"}}},
                             {ChatRole::tool, "3"}};
    EXPECT_EQ(
        marked(ChatTemplate::chatml, turns),
        "<|im_start|>user\nSum?<|im_end|>\n<|im_start|>assistant\n[Let me see.\n<tool_call>\n"
        "{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n"
        "{\"name\": \"wait\", \"arguments\": {}}\n</tool_call><|im_end|>]\n<|im_start|>tool\n3<|im_end|>\n");
    EXPECT_EQ(message_text({ChatRole::assistant, "", {{"add", "{\"a\": 1}"}}}, ChatTemplate::llama3),
              "{\"name\": \"add\", \"parameters\": {\"a\": 1}}");
}

TEST(ChatTemplates, TheFirstTokenIsNeverATarget) {
    for (const ChatTemplate chat_template : {ChatTemplate::plain, ChatTemplate::chatml, ChatTemplate::llama3})
        for (const ChatRole role : {ChatRole::system, ChatRole::user, ChatRole::assistant, ChatRole::tool})
            EXPECT_FALSE(ChatFormat(chat_template, Tokenizer::bytes())
                             .encode(Conversation{{role, ""}}, "test")
                             .is_target.front());
}

/// The same conversation with the answer begins with the prompt's tokens.
TEST(ChatTemplates, APromptIsTheTextBeforeTheAnswer) {
    for (const ChatTemplate chat_template :
         {ChatTemplate::plain, ChatTemplate::chatml, ChatTemplate::llama3}) {
        const ChatFormat format(chat_template, Tokenizer::bytes());
        const std::vector<std::int32_t> full = format.encode(two_turns, "test").ids,
                                        prompt = format.prompt(std::span(two_turns).first(4), "test");
        ASSERT_LT(prompt.size(), full.size());
        EXPECT_TRUE(std::ranges::equal(prompt, std::span(full).first(prompt.size())));
        EXPECT_THAT(Tokenizer::bytes().decode(std::span(full).subspan(prompt.size())), HasSubstr("See you"));
    }
}

TEST(ChatTemplates, AutomaticIsPlainWithoutSpecialTokens) {
    EXPECT_EQ(resolved_template(ChatTemplate::automatic, Tokenizer::bytes()), ChatTemplate::plain);
    EXPECT_EQ(resolved_template(ChatTemplate::llama3, Tokenizer::bytes()), ChatTemplate::llama3);
    EXPECT_THAT(ChatFormat(ChatTemplate::chatml, Tokenizer::bytes()).missing_tokens(),
                ElementsAre("<|im_start|>", "<|im_end|>"));
    EXPECT_THAT(ChatFormat(ChatTemplate::chatml, Tokenizer::bytes()).stop_texts(), ElementsAre("<|im_end|>"));
    EXPECT_THAT(ChatFormat(ChatTemplate::plain, Tokenizer::bytes()).stop_texts(),
                ElementsAre("\nSystem:", "\nUser:", "\nAssistant:", "\nTool:"));
}

/// Examples with 5, 3, 9, 2 and 4 tokens; the ids count from 100, and even ids are targets.
TokenSequence numbered_examples() {
    Examples examples{.begins = {0, 5, 8, 17, 19, 23}, .is_target = std::vector<bool>(23)};
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < 23; ++i) {
        ids.push_back(100 + i);
        examples.is_target[static_cast<std::size_t>(i)] =
            i % 2 == 0 && std::ranges::find(examples.begins, i) == examples.begins.end();
    }
    return TokenSequence::from_examples(std::move(ids), std::move(examples), "examples");
}

std::vector<std::pair<std::int64_t, std::int64_t>> windows(std::int64_t context, const Packing& packing) {
    const TokenSequence tokens = numbered_examples();
    std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
    for (const TokenWindow& window : windows_of(*tokens.examples(), context, packing))
        pairs.emplace_back(window.begin, window.end);
    return pairs;
}

TEST(Examples, ASliceHoldsWholeExamples) {
    const TokenSequence all = numbered_examples(), part = all.slice(5, 19);
    const std::vector<bool>& is_target = all.examples()->is_target;
    EXPECT_THAT(part.examples()->begins, ElementsAre(0, 3, 12, 14));
    EXPECT_EQ(part.examples()->is_target, std::vector<bool>(is_target.begin() + 5, is_target.begin() + 19));
    EXPECT_THAT(message_of([&] { all.slice(5, 18); }),
                HasSubstr("examples: tokens [5, 18) were requested, which divide an example"));
}

TEST(Examples, AWindowHoldsOneExampleOrAPartOfALongOne) {
    using Pair = std::pair<std::int64_t, std::int64_t>;
    // The example [17, 19) has the target 18, and [8, 17) the targets 10, 12, 14 and 16.
    EXPECT_THAT(windows(8, {}), ElementsAre(Pair{0, 4}, Pair{5, 7}, Pair{8, 16}, Pair{17, 18}, Pair{19, 22}));
    EXPECT_THAT(windows(3, {}), ElementsAre(Pair{0, 3}, Pair{3, 4}, Pair{5, 7}, Pair{8, 11}, Pair{11, 14},
                                            Pair{14, 16}, Pair{17, 18}, Pair{19, 22}));
    EXPECT_EQ(windows(1, {}).size(), 10u) << "windows without a target are left out";
}

TEST(Examples, PackedWindowsHoldWholeExamples) {
    using Pair = std::pair<std::int64_t, std::int64_t>;
    const Packing packing{{.kind = DocumentRule::Kind::examples}, 3};
    EXPECT_THAT(windows(8, packing), ElementsAre(Pair{0, 7}, Pair{8, 16}, Pair{17, 22}));
    EXPECT_THAT(windows(100, packing), ElementsAre(Pair{0, 16}, Pair{17, 22})) << "three in a window";
    EXPECT_THAT(windows(5, packing),
                ElementsAre(Pair{0, 4}, Pair{5, 7}, Pair{8, 13}, Pair{13, 16}, Pair{17, 22}));
}

struct ExampleRows {
    std::vector<std::int32_t> tokens, targets, positions, offsets, ranges;
};

template <class Loader>
std::int64_t next(Loader& loader, std::int64_t rows, std::int64_t context, ExampleRows& to) {
    const auto count = static_cast<std::size_t>(rows * context);
    to = {std::vector<std::int32_t>(count, -7), std::vector<std::int32_t>(count, -7), {}, {}, {}};
    if (!loader.packing()) return loader.next(to.tokens, to.targets);
    to.positions.assign(count, -7);
    to.offsets.assign(static_cast<std::size_t>(loader.packing().offsets_of(rows)), -7);
    if (loader.packing().has_ranges()) to.ranges.assign(4 * count, -7);
    return loader.next(to.tokens, to.targets, DocumentSpans{to.positions, to.offsets, to.ranges});
}

TEST(Examples, RowsIgnoreTargetsThatAreNotMarkedAndPadding) {
    SequentialLoader loader(numbered_examples(), 6);
    ExampleRows rows;
    EXPECT_EQ(next(loader, 2, 6, rows), 3);
    EXPECT_THAT(rows.tokens, ElementsAre(100, 101, 102, 103, 0, 0, 105, 106, 0, 0, 0, 0));
    EXPECT_THAT(rows.targets, ElementsAre(-1, 102, -1, 104, -1, -1, 106, -1, -1, -1, -1, -1));
    next(loader, 2, 6, rows);  // the example [8, 17) in two windows
    EXPECT_THAT(rows.tokens, ElementsAre(108, 109, 110, 111, 112, 113, 114, 115, 0, 0, 0, 0));
    next(loader, 3, 6, rows);
    EXPECT_THAT(rows.tokens, ElementsAre(117, 0, 0, 0, 0, 0, 119, 120, 121, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    EXPECT_TRUE(loader.done());
}

TEST(Examples, PackedRowsDivideWindowsAtExamples) {
    SequentialLoader loader(numbered_examples(), 8, {.packing = {{.kind = DocumentRule::Kind::examples}, 3}});
    ExampleRows rows;
    EXPECT_EQ(next(loader, 1, 8, rows), 3);
    EXPECT_THAT(rows.tokens, ElementsAre(100, 101, 102, 103, 104, 105, 106, 0));
    EXPECT_THAT(rows.targets, ElementsAre(-1, 102, -1, 104, -1, 106, -1, -1));
    EXPECT_THAT(rows.positions, ElementsAre(0, 1, 2, 3, 4, 0, 1, 2));
    EXPECT_THAT(rows.offsets, ElementsAre(0, 5, 8, 8));
    EXPECT_EQ(next(loader, 1, 8, rows), 4);
    EXPECT_THAT(rows.offsets, ElementsAre(0, 8, 8, 8));
    EXPECT_EQ(next(loader, 2, 8, rows), 3) << "one window is left";
    EXPECT_THAT(rows.positions, ElementsAre(0, 1, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 7));
    EXPECT_THAT(rows.offsets, ElementsAre(0, 2, 8, 8, 16, 16, 16));
}

/// A prompt with ids 1 to 3, whose last id stands before both answers, and a prompt with ids 1 and 2.
TokenSequence prompts_with_answers() {
    const std::vector<std::int32_t> ids{1, 2, 3, 11, 12, 3, 21, 1, 2, 31, 32, 33};
    Examples examples{.begins = {0, 7, 12},
                      .is_target = {false, false, false, true, true, false, true,  //
                                    false, false, true, true, true},
                      .kind = DocumentKind::shared_prompts};
    return TokenSequence::from_examples(ids, std::move(examples), "prompts");
}

/// Which tokens row `row` of a window sees, as "x" and ".".
std::string seen_by(const ExampleRows& rows, std::int64_t row, std::int64_t context) {
    std::string seen;
    for (std::int64_t key = 0; key < context; ++key) {
        const std::int32_t* const r = rows.ranges.data() + 4 * key;
        seen += (row >= r[0] && row < r[1]) || (row >= r[2] && row < r[3]) ? 'x' : '.';
    }
    return seen;
}

TEST(Examples, AnAnswerSeesItsPromptAndItselfAndGoesOnFromThePromptsEnd) {
    SequentialLoader loader(prompts_with_answers(), 12, {.packing = {{DocumentRule::Kind::examples}, 2}});
    ExampleRows rows;
    EXPECT_EQ(next(loader, 1, 12, rows), 6);
    EXPECT_THAT(rows.tokens, ElementsAre(1, 2, 3, 11, 12, 3, 21, 1, 2, 31, 32, 0));
    EXPECT_THAT(rows.targets, ElementsAre(-1, -1, 11, 12, -1, 21, -1, -1, 31, 32, 33, -1));
    EXPECT_THAT(rows.positions, ElementsAre(0, 1, 2, 3, 4, 2, 3, 0, 1, 2, 3, 0));
    const char* const seen[] = {"x...........", "xx..........", "xxx.........", "xxxx........",
                                "xxxxx.......", "xx...x......", "xx...xx.....", ".......x....",
                                ".......xx...", ".......xxx..", ".......xxxx.", "............"};
    for (std::int64_t row = 0; row < 12; ++row) EXPECT_EQ(seen_by(rows, row, 12), seen[row]) << row;
}

TEST(Examples, AllTokensOfAPrefixSeeItsLastOneWhichStandsBeforeEachAnswer) {
    SequentialLoader loader(prompts_with_answers(), 7,
                            {.packing = {{DocumentRule::Kind::examples}, 1, DocumentMask::prefix_ranges}});
    ExampleRows rows;
    EXPECT_EQ(next(loader, 2, 7, rows), 6);
    const char* const seen[] = {"xxx....", "xxx....", "xxx....", "xxxx...", "xxxxx..", "xx...x.", "......."};
    for (std::int64_t row = 0; row < 7; ++row) EXPECT_EQ(seen_by(rows, row, 7), seen[row]) << row;
    // The second window.
    EXPECT_THAT(std::vector(rows.positions.begin() + 7, rows.positions.end()),
                ElementsAre(0, 1, 2, 3, 0, 0, 0));
    rows.ranges.erase(rows.ranges.begin(), rows.ranges.begin() + 28);
    const char* const second[] = {"xx.....", "xx.....", "xxx....", "xxxx...", "......."};
    for (std::int64_t row = 0; row < 5; ++row) EXPECT_EQ(seen_by(rows, row, 7), second[row]) << row;
}

/// A part of an answer would lack its prompt.
TEST(Examples, ALongExampleWithRowRangesIsLeftOutAndCounted) {
    const TokenSequence tokens = prompts_with_answers();
    const Packing ranges = packing_for({}, document_kind_of(tokens), "prompts");
    EXPECT_EQ(ranges.mask, DocumentMask::ranges);
    EXPECT_EQ(windows_of(*tokens.examples(), 6, ranges).size(), 2u);
    EXPECT_EQ(note_on_long_examples(tokens, 6, ranges), "");
    EXPECT_EQ(windows_of(*tokens.examples(), 5, ranges).size(), 1u);
    EXPECT_EQ(
        note_on_long_examples(tokens, 5, ranges),
        "prompts: 1 of 2 prompts are left out, because they have, with all their completions, more than "
        "6 tokens (context + 1)");
    const std::string reason =
        ": 2 of 2 prompts are left out, because they have, with all their completions, more than 4 tokens "
        "(context + 1)";
    EXPECT_EQ(message_of([&] { SequentialLoader(tokens, 3); }),
              "prompts: has no target to validate on" + reason);
    EXPECT_EQ(message_of([&] { DataLoader(tokens, {.context = 3}); }),
              "prompts: has no target to train on" + reason);
}

TEST(Examples, OnlyPromptsWithCompletionsHaveAPrefix) {
    const Packing prefix{{DocumentRule::Kind::examples}, 1, DocumentMask::prefix_ranges};
    EXPECT_THAT(
        message_of([&] { SequentialLoader(numbered_examples(), 8, {.packing = prefix}); }),
        HasSubstr("examples: holds no prompts with completions; expected them for a model with pref"));
    EXPECT_THAT(message_of([&] {
                    DataLoader(TokenSequence(std::vector<std::int32_t>(50, 1), "text"),
                               {.context = 8, .seed = {1}, .packing = prefix});
                }),
                HasSubstr("text: holds no prompts"));
}

/// In every epoch each target counts once, for any number of ranks.
TEST(Examples, AnEpochVisitsEachTargetOnceInAnyNumberOfRanks) {
    for (const Packing& packing : {Packing{}, Packing{{.kind = DocumentRule::Kind::examples}, 2}})
        for (const std::int64_t context : {2, 6, 30}) {
            const auto loader = [&](std::int64_t rank, std::int64_t ranks) {
                return DataLoader(
                    numbered_examples(),
                    {.context = context, .seed = {5}, .rank = rank, .ranks = ranks, .packing = packing});
            };
            DataLoader alone = loader(0, 1), first = loader(0, 2), second = loader(1, 2);
            std::vector<std::int32_t> seen;
            while (alone.epoch() < 2) {
                ExampleRows rows, a, b;
                const std::int64_t counted = next(alone, 1, context, rows);
                for (const std::int32_t target : rows.targets)
                    if (target != ignored_target) seen.push_back(target);
                EXPECT_GE(counted, 1);
            }
            std::ranges::sort(seen);
            std::vector<std::int32_t> expected;
            for (const std::int32_t id : {102, 104, 106, 110, 112, 114, 116, 118, 120, 122})
                expected.insert(expected.end(), 2, id);
            EXPECT_EQ(seen, expected);

            alone.restore(loader(0, 1).state());
            for (int step = 0; step < 20; ++step) {
                ExampleRows rows, a, b;
                const std::int64_t counted = next(alone, 4, context, rows);
                EXPECT_EQ(next(first, 2, context, a), counted);
                EXPECT_EQ(next(second, 2, context, b), counted);
                a.targets.insert(a.targets.end(), b.targets.begin(), b.targets.end());
                EXPECT_EQ(a.targets, rows.targets);
                EXPECT_EQ(first.state(), alone.state());
            }
        }
}

TEST(Dataset, ConversationsAreSplitAsWholesAndMakeTheTokenizer) {
    const TemporaryDirectory place;
    std::string lines;
    for (char c = 'a'; c <= 'j'; ++c)
        lines +=
            std::string(R"({"messages":[{"role":"user","content":"?"},{"role":"assistant","content":")") + c +
            "\"}]}\n";
    const std::string path = place.write("c.jsonl", lines);
    const Dataset dataset = load_dataset({.data = path});
    ASSERT_TRUE(dataset.train.examples() && dataset.validation.examples());
    EXPECT_EQ(dataset.train.examples()->count(), 9);
    EXPECT_EQ(dataset.validation.examples()->count(), 1);
    EXPECT_EQ(dataset.chat_template, ChatTemplate::plain);
    EXPECT_THAT(dataset.description.front(), HasSubstr("10 conversations in the template plain"));
    EXPECT_EQ(dataset.tokenizer->decode(dataset.tokenizer->encode("\nSystem: j", "test")), "\nSystem: j");
    const Dataset bytes = load_dataset(
        {.data = path, .tokenizer = TokenizerKind::bytes, .chat_template = ChatTemplate::chatml});
    EXPECT_THAT(bytes.description.front(),
                HasSubstr("spelled out, because the tokenizer lacks them: <|im_start|>"));
    EXPECT_EQ(load_dataset({.data = path, .val_fraction = 0.0}).validation.size(), 0);
    EXPECT_EQ(load_dataset({.data = path, .val_data = path}).validation.examples()->count(), 10);
}

TEST(Dataset, ConversationsWithoutAnAnswerAreRefused) {
    const TemporaryDirectory place;
    const std::string path = place.write("c.jsonl", R"({"messages":[{"role":"user","content":"alone"}]})");
    const Dataset dataset = load_dataset({.data = path});
    EXPECT_THAT(message_of([&] { DataLoader(dataset.train, {.context = 4}); }),
                HasSubstr("c.jsonl: has no target to train on"));
}

}  // namespace
}  // namespace gradtile
