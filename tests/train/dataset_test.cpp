#include <gradtile/train/dataset.h>

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/train/corpus.h>
#include <gradtile/train/token_file.h>

#include <support/error_message.h>

#include "temporary_directory.h"

namespace gradtile {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using testing::HasSubstr;

std::string text_of(const Dataset& dataset, const TokenSequence& tokens) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens.size()));
    tokens.read(0, ids);
    return dataset.tokenizer->decode(ids);
}

TEST(Dataset, KeepsTheFirstNinetyPercentOfTheCharactersForTraining) {
    const TemporaryDirectory place;
    const Dataset dataset = load_dataset({.data = place.write("t.txt", "äbcdefghijklmnopqrs")});
    EXPECT_EQ(text_of(dataset, dataset.train), "äbcdefghijklmnopq");  // int(0.9 * 19)
    EXPECT_EQ(text_of(dataset, dataset.validation), "rs");
    EXPECT_EQ(dataset.vocabulary, 19);
    EXPECT_FALSE(dataset.source_nll.has_value());
}

TEST(Dataset, ATextBeginsAfterItsByteOrderMarkAndKeepsItsLineEnds) {
    const TemporaryDirectory place;
    const std::string path = place.write("t.txt",
                                         "\xEF\xBB\xBF"
                                         "one\r\ntwo");
    const Dataset characters = load_dataset({.data = path, .val_fraction = 0});
    EXPECT_EQ(text_of(characters, characters.train), "one\r\ntwo");
    EXPECT_EQ(characters.validation.size(), 0);
    const Dataset bytes = load_dataset({.data = path, .val_fraction = 0, .tokenizer = TokenizerKind::bytes});
    EXPECT_EQ(text_of(bytes, bytes.train),
              "\xEF\xBB\xBF"
              "one\r\ntwo");
    EXPECT_EQ(bytes.vocabulary, 256);
}

TEST(Dataset, ValidationDataUsesTheTrainingVocabulary) {
    const TemporaryDirectory place;
    const std::string train = place.write("train.txt", "hello"), val = place.write("val.txt", "hole");
    const Dataset dataset = load_dataset({.data = train, .val_data = val});
    EXPECT_EQ(text_of(dataset, dataset.train), "hello");
    EXPECT_EQ(text_of(dataset, dataset.validation), "hole");
    place.write("val.txt", "halo");
    EXPECT_EQ(message_of([&] { load_dataset({.data = train, .val_data = val}); }),
              val + ": character U+0061 at byte offset 1 is not one of the 4 the tokenizer knows");
}

TEST(Dataset, ACheckpointsTokenizerIsUsedAsItIs) {
    const TemporaryDirectory place;
    const Tokenizer tokenizer = Tokenizer::characters_of("abcdefgh", "t");
    const Dataset dataset = load_dataset({.data = place.write("t.txt", "badcafe")}, tokenizer);
    EXPECT_EQ(dataset.vocabulary, 8);
    EXPECT_EQ(*dataset.tokenizer, tokenizer);
    EXPECT_THROW(load_dataset({.data = place.write("t.txt", "zebra")}, tokenizer), Error);
}

TEST(Dataset, TokenFilesAreSplitAndCheckedAgainstTheVocabulary) {
    const TemporaryDirectory place;
    const std::string path = place / "t.bin";
    write_token_file(path, TokenFormat::gpt2_shard, std::vector<std::int32_t>{9, 8, 7, 6, 5, 4, 3, 2, 1, 0});
    const Dataset dataset = load_dataset({.data = path, .val_fraction = 0.2});
    EXPECT_EQ(dataset.train.size(), 8);
    EXPECT_EQ(dataset.validation.size(), 2);
    EXPECT_EQ(dataset.vocabulary, 50257);
    EXPECT_FALSE(dataset.tokenizer.has_value());
    EXPECT_EQ(message_of([&] { load_dataset({.data = path, .vocabulary = 9}); }),
              path + ": token 0 has id 9, outside the vocabulary of 9");
    const std::string text = place.write("t.txt", "text");
    EXPECT_THAT(message_of([&] { load_dataset({.data = path, .val_data = text}); }),
                HasSubstr("t.txt: is text"));
}

TEST(Dataset, StoriesAreSplitAtABorderAndTheirSourceIsKnown) {
    const TemporaryDirectory place;
    const Corpus corpus = generate_corpus(30000, Seed{2});
    const std::string path = place.write("stories.txt", corpus.text);
    for (const TokenizerKind kind : {TokenizerKind::characters, TokenizerKind::bytes}) {
        const Dataset dataset = load_dataset({.data = path, .tokenizer = kind});
        const std::string train = text_of(dataset, dataset.train),
                          rest = text_of(dataset, dataset.validation);
        EXPECT_EQ(train + rest, corpus.text);
        EXPECT_TRUE(train.ends_with("\n\n"));
        EXPECT_NEAR(static_cast<double>(train.size()), 0.9 * static_cast<double>(corpus.text.size()), 1000);
        EXPECT_NEAR(*dataset.source_nll, source_nll_per_character(*parse_corpus(rest)), 1e-12);
    }
    const std::string val = place.write("val.txt", generate_corpus(1000, Seed{3}).text);
    const Dataset separate = load_dataset({.data = path, .val_data = val});
    EXPECT_EQ(separate.train.size(), std::ssize(corpus.text));
    EXPECT_GT(*separate.source_nll, 0.0);
}

TEST(Dataset, FilesThatCannotServeAreRefusedByName) {
    const TemporaryDirectory place;
    const auto message = [](const std::string& path) {
        return message_of([&] { load_dataset({.data = path}); });
    };
    EXPECT_EQ(message(""), "data: no file given (--data FILE)");
    EXPECT_THAT(message(place / "missing.txt"), HasSubstr("missing.txt: cannot be opened: No such file"));
    EXPECT_THAT(message(place.path()), HasSubstr("is a directory; expected a file"));
    EXPECT_THAT(message(place.write("empty.txt", "")), HasSubstr("empty.txt: is empty; expected text"));
    EXPECT_THAT(message(place.write("bom.txt", "\xEF\xBB\xBF")),
                HasSubstr("bom.txt: is empty; expected text"));
    EXPECT_THAT(message(place.write("latin.txt", "caf\xE9s")),
                HasSubstr("latin.txt: invalid UTF-8 at byte offset 3"));
    EXPECT_EQ(message_of([&] { load_dataset({.data = place.write("t.txt", "x"), .val_fraction = 1.5}); }),
              "val-fraction: 1.5; expected 0 <= val-fraction < 1");
}

TEST(Dataset, TinyShakespeareIsSplitAsNanoGptSplitsIt) {
    const char* const given = std::getenv("GRADTILE_SHARED_DATA");
    const std::filesystem::path shared =
        given ? given : std::filesystem::path(GRADTILE_SOURCE_DIR) / ".." / "shared" / "data";
    const std::string path = shared / "tinyshakespeare.txt";
    if (!std::filesystem::exists(path))
        GTEST_SKIP() << "no tiny Shakespeare at " << path << "; set GRADTILE_SHARED_DATA to its directory";
    const Dataset dataset = load_dataset({.data = path});
    EXPECT_EQ(dataset.vocabulary, 65);
    EXPECT_EQ(dataset.train.size(), 1003854);
    EXPECT_EQ(dataset.validation.size(), 111540);
    std::vector<std::int32_t> first(5);
    dataset.train.read(0, first);
    EXPECT_THAT(first,
                testing::ElementsAre(18, 47, 56, 57, 58));  // "First", as nanoGPT's prepare.py numbers it
}

}  // namespace
}  // namespace gradtile
