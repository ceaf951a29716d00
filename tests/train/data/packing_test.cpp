// Packed documents in windows: their borders, positions and targets.
#include <gradtile/layers/vocabulary.h>
#include <gradtile/train/data/packing.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/train/data/data_loader.h>

#include <support/error_message.h>
#include <train/tiny_run.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int32_t no_target = ignored_target;

struct PackedRows {
    std::vector<std::int32_t> tokens, targets, positions, offsets;
    std::int64_t counted = 0;
};

template <class Loader>
PackedRows next_rows(Loader& loader, std::int64_t rows, std::int64_t context) {
    const auto count = static_cast<std::size_t>(rows * context);
    PackedRows all{.tokens = std::vector<std::int32_t>(count, 99),
                   .targets = std::vector<std::int32_t>(count, 99),
                   .positions = std::vector<std::int32_t>(count, 99),
                   .offsets = std::vector<std::int32_t>(
                       static_cast<std::size_t>(loader.packing().offsets_of(rows)), 99)};
    all.counted = loader.next(all.tokens, all.targets, DocumentSpans{all.positions, all.offsets});
    return all;
}

Packing separated_by(std::int32_t token, std::int64_t max_documents) {
    return {{DocumentRule::Kind::separator, token}, max_documents};
}
/// 7 is a line break.
Packing separated_by_blank_lines(std::int64_t max_documents) {
    return {{DocumentRule::Kind::blank_lines, 7}, max_documents};
}

TEST(Packing, ASeparatorBeginsADocumentAndIsTheLastTargetOfTheOneBefore) {
    SequentialLoader loader(TokenSequence({0, 1, 2, 0, 3, 0, 0, 4, 5, 6, 0, 8}, "ids"), 6,
                            {.packing = separated_by(0, 4)});
    const PackedRows rows = next_rows(loader, 2, 6);
    EXPECT_THAT(rows.tokens, ElementsAre(0, 1, 2, 0, 3, 0, 0, 4, 5, 6, 0, 0));
    EXPECT_THAT(rows.targets, ElementsAre(1, 2, 0, 3, 0, 0, 4, 5, 6, 0, 8, no_target));
    EXPECT_THAT(rows.positions, ElementsAre(0, 1, 2, 0, 1, 0, 0, 1, 2, 3, 0, 1));
    EXPECT_THAT(rows.offsets, ElementsAre(0, 3, 5, 6, 6, 10, 12, 12, 12));
    EXPECT_EQ(rows.counted, 11);
}

/// The line after a blank line is not predicted: nothing before it belongs to its document.
TEST(Packing, BlankLinesSeparateDocumentsAndTheNextDocumentIsNoTarget) {
    SequentialLoader loader(TokenSequence({1, 7, 2, 7, 7, 3, 4, 7, 7, 7, 5, 6}, "ids"), 20,
                            {.packing = separated_by_blank_lines(4)});
    const PackedRows rows = next_rows(loader, 1, 20);
    EXPECT_EQ(std::vector(rows.targets.begin(), rows.targets.begin() + 12),
              (std::vector{7, 2, 7, 7, no_target, 4, 7, 7, 7, no_target, 6, no_target}));
    EXPECT_EQ(std::vector(rows.positions.begin(), rows.positions.begin() + 12),
              (std::vector{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1}));
    EXPECT_THAT(rows.offsets, ElementsAre(0, 5, 10, 20, 20));
    EXPECT_EQ(rows.counted, 9);
}

/// A window may begin inside a blank line, or at the line after it.
TEST(Packing, BordersDoNotDependOnWhereWindowsBegin) {
    const std::vector<std::int32_t> ids{1, 2, 7, 7, 3, 4, 7, 5, 7, 7, 6, 8, 7, 7, 9, 1, 2, 3, 7, 7, 4};
    SequentialLoader full_loader(TokenSequence(ids, "ids"), 20, {.packing = separated_by_blank_lines(20)});
    const PackedRows expected = next_rows(full_loader, 1, 20);
    for (std::int64_t context = 1; context < 20; ++context) {
        SequentialLoader loader(TokenSequence(ids, "ids"), context,
                                {.packing = separated_by_blank_lines(context)});
        std::vector<std::int32_t> targets;
        std::int64_t counted = 0;
        while (!loader.done()) {
            const PackedRows rows = next_rows(loader, 1, context);
            targets.insert(targets.end(), rows.targets.begin(), rows.targets.end());
            counted += rows.counted;
        }
        targets.resize(20);
        EXPECT_EQ(targets, expected.targets) << context;
        EXPECT_EQ(counted, expected.counted) << context;
    }
}

/// Returns the text from each document's beginning to the next.
std::vector<std::string> documents_in(const std::string& text, const Tokenizer& tokenizer) {
    const TokenSequence tokens(tokenizer.encode(text, "text"), "text");
    std::vector<std::string> documents;
    std::size_t begin = 0;  // every character is a token
    for (const std::int64_t next : document_begins(tokens, document_rule(-1, tokenizer), tokens.size())) {
        documents.push_back(text.substr(begin, static_cast<std::size_t>(next) - begin));
        begin = static_cast<std::size_t>(next);
    }
    documents.push_back(text.substr(begin));
    return documents;
}

TEST(Packing, ALineOfBlanksIsABlankLine) {
    for (const std::string blank : {"\n", "\r\n", " \n", "\t \r\n", "\v\f\n"})
        for (const std::string end : {"\n", "\r\n"}) {
            const std::string first = "one" + end + "more" + end + blank,
                              second = "  two" + end + blank + blank + "\n", third = "three" + end + " ";
            const std::string text = first + second + third;
            for (const Tokenizer& tokenizer : {Tokenizer::bytes(), Tokenizer::characters_of(text, "text")})
                EXPECT_THAT(documents_in(text, tokenizer), ElementsAre(first, second, third));
        }
    EXPECT_THAT(documents_in("\na\n \n \n", Tokenizer::bytes()), ElementsAre("\na\n \n \n"));
    EXPECT_THAT(documents_in("\r\n\r\na", Tokenizer::bytes()), ElementsAre("\r\n\r\n", "a"));
    EXPECT_THAT(documents_in("a \n b\nc", Tokenizer::bytes()), ElementsAre("a \n b\nc"));
}

TEST(Packing, ATrainerSaysWhenNoBlankLineEndsADocument) {
    test::TinyRun run;
    run.config.out = "";
    run.config.packed = true;
    const auto messages = [&](const std::string& text) {
        run.config.data = run.directory.write("text.txt", text);
        std::string all;
        Trainer(run.config, [&](const std::string& line) { all += line + "\n"; });
        return all;
    };
    const std::string text = test::some_text(200);
    EXPECT_THAT(messages(text),
                testing::AllOf(HasSubstr("packed: documents begin after blank lines; the first "),
                               HasSubstr(" are one document")));
    for (const char* end : {"\n\n", "\r\n\r\n", "\n \t\n"}) EXPECT_EQ(messages("one" + (end + text)), "");
}

TEST(Packing, TargetsAfterTheLastDocumentOfAFullWindowAreIgnored) {
    SequentialLoader loader(TokenSequence({0, 1, 0, 2, 0, 3, 0, 4, 0}, "ids"), 8,
                            {.packing = separated_by(0, 2)});
    const PackedRows rows = next_rows(loader, 1, 8);
    EXPECT_THAT(rows.targets, ElementsAre(1, 0, 2, 0, no_target, no_target, no_target, no_target));
    EXPECT_THAT(rows.offsets, ElementsAre(0, 2, 8));
    EXPECT_EQ(rows.counted, 4);
}

TEST(Packing, RanksCountTheTargetsOfAllAndShareOneOrder) {
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < 400; ++i) ids.push_back(i * i % 11 % 8);
    for (const Packing& packing : {separated_by(0, 3), separated_by_blank_lines(8)}) {
        const auto loader = [&](std::int64_t rank, std::int64_t ranks) {
            return DataLoader(TokenSequence(ids, "ids"), {.context = 9,
                                                          .seed = {3},
                                                          .rank = rank,
                                                          .ranks = ranks,
                                                          .ignore_token = 5,
                                                          .packing = packing});
        };
        DataLoader alone = loader(0, 1), first = loader(0, 2), second = loader(1, 2);
        for (int batch = 0; batch < 60; ++batch) {
            const PackedRows all = next_rows(alone, 4, 9), a = next_rows(first, 2, 9),
                             b = next_rows(second, 2, 9);
            EXPECT_EQ(a.counted, all.counted);
            EXPECT_EQ(b.counted, all.counted);
            EXPECT_EQ(std::ssize(all.targets) - std::ranges::count(all.targets, no_target), all.counted);
            std::vector<std::int32_t> positions = a.positions;
            positions.insert(positions.end(), b.positions.begin(), b.positions.end());
            EXPECT_EQ(positions, all.positions);
        }
    }
}

TEST(Packing, TheRuleFollowsFromTheTokenizerUnlessATokenIsGiven) {
    EXPECT_EQ(document_rule(3, {}).kind, DocumentRule::Kind::separator);
    EXPECT_EQ(document_rule(3, {}).token, 3);
    EXPECT_EQ(document_rule(-1, Tokenizer::bytes()).kind, DocumentRule::Kind::blank_lines);
    EXPECT_EQ(document_rule(-1, Tokenizer::bytes()).token, '\n');
    EXPECT_EQ(document_rule(-1, Tokenizer::characters_of("a\nb", "text")).token, 0);
    EXPECT_THAT(message_of([] { document_rule(-1, {}); }), HasSubstr("expected document-token"));
    EXPECT_THAT(message_of([] { document_rule(-1, Tokenizer::characters_of("ab", "text")); }),
                HasSubstr("packed: the line break"));
}

TEST(Packing, BatchesWithoutMemoryForDocumentsAreRefused) {
    SequentialLoader loader(TokenSequence({0, 1, 0, 2, 0}, "ids"), 4, {.packing = separated_by(0, 2)});
    std::vector<std::int32_t> tokens(4), targets(4);
    EXPECT_THAT(message_of([&] { loader.next(tokens, targets); }), HasSubstr("expected 4 and 3"));
}

}  // namespace
}  // namespace gradtile
