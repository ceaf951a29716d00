// Training a byte-level BPE vocabulary; scripts/judge.sh compares the result with the tokenizers library's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/tools/tokenizer/byte_pair_trainer.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;

BytePairTrainerOptions options_for(std::int64_t vocabulary, int threads) {
    return {.vocabulary = vocabulary, .special_tokens = {"<e>"}, .threads = threads};
}

TEST(BytePairTrainer, TheMostFrequentPairIsMergedFirstAndTiesGoToSmallerIds) {
    BytePairTrainer trainer(options_for(262, 1));
    trainer.add("abab cd cd xyz xyz");  // ab twice, " c" twice, cd twice, " x", xy and yz twice
    const BytePairVocabulary vocabulary = trainer.train().vocabulary;
    EXPECT_EQ(vocabulary.tokens[0], "<e>");
    EXPECT_EQ(vocabulary.tokens[1], "!");  // the first byte that is written as itself
    // Ids follow the order of the characters that stand for bytes: a < b < c < ... < space (U+0120).
    EXPECT_THAT(std::vector(vocabulary.tokens.begin() + 257, vocabulary.tokens.end()),
                ElementsAre("ab", "cd", "xy", " cd", " xy"));
}

TEST(BytePairTrainer, TheResultDoesNotDependOnTheNumberOfThreads) {
    std::string text;
    while (text.size() < 9'000'000)
        text +=
            "line " + std::to_string(text.size() * 2654435761u % 1000) + "  of text\n\n \t\nbyte \xFF é\n";
    BytePairTrainer one(options_for(400, 1)), three(options_for(400, 3));
    one.add(text);
    three.add(text);
    EXPECT_EQ(one.distinct_pieces(), three.distinct_pieces());
    EXPECT_EQ(one.train().vocabulary, three.train().vocabulary);
}

TEST(BytePairTrainer, StopsWhenTheTextHasNoMorePairs) {
    BytePairTrainer trainer(options_for(1000, 1));
    EXPECT_EQ(trainer.train().vocabulary.tokens.size(), 257u);
    trainer.add("aaaa");
    EXPECT_EQ(trainer.train().vocabulary.tokens.size(), 259u);  // aa, aaaa
    EXPECT_THAT(message_of([] { BytePairTrainer(options_for(256, 1)); }), HasSubstr("expected 257"));
}

TEST(BytePairTrainer, SaysWhyTheVocabularyIsSmall) {
    const auto shortage = [](std::int64_t vocabulary, std::int64_t min_frequency, const std::string& text) {
        BytePairTrainerOptions options = options_for(vocabulary, 1);
        options.min_frequency = min_frequency;
        BytePairTrainer trainer(std::move(options));
        trainer.add(text);
        return trainer.train().shortage;
    };
    const std::string dashes(10'000, '-');
    EXPECT_EQ(shortage(259, 0, "aaaa"), "");
    EXPECT_EQ(shortage(260, 0, "aaaa"), "the text has no more pairs");
    EXPECT_EQ(shortage(260, 2, "aaaa"), "no other pair occurs 2 times");
    EXPECT_EQ(shortage(1000, 1500, dashes), "no other pair occurs 1,500 times");
    EXPECT_EQ(shortage(1000, 0, dashes), "the remaining pairs are longer than 2,048 bytes");
    EXPECT_EQ(shortage(1000, 3, "rare" + dashes),
              "the remaining pairs are longer than 2,048 bytes, and no other occurs 3 times");
}

TEST(BytePairTrainer, MergesNoTokenThatIsLongerThanTheTokenizerAccepts) {
    BytePairTrainer trainer(options_for(1000, 1));
    trainer.add("text\n" + std::string(10000, '-'));
    BytePairVocabulary vocabulary = trainer.train().vocabulary;
    std::size_t longest = 0;
    for (const std::string& token : vocabulary.tokens) longest = std::max(longest, token.size());
    EXPECT_EQ(longest, 2048u);
    EXPECT_NO_THROW(BytePairEncoding(std::move(vocabulary), "trained"));
    BytePairTrainerOptions options = options_for(1000, 1);
    options.special_tokens = {std::string(2049, '<')};
    EXPECT_THAT(message_of([&] { BytePairTrainer(std::move(options)); }), HasSubstr("expected at most 2048"));
}

}  // namespace
}  // namespace gradtile
