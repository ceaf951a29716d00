#include <gradtile/core/text/json_reader.h>
#include <gradtile/train/data/dataset.h>

#include <cstdlib>
#include <filesystem>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <gradtile/tools/corpus/corpus.h>
#include <gradtile/tools/tokenizer/byte_pair_trainer.h>
#include <gradtile/train/data/token_file.h>

#include <support/error_message.h>

#include <support/temporary_directory.h>

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
    EXPECT_FALSE(dataset.source_loss.has_value());
}

TEST(Dataset, DropsTheByteOrderMarkAndKeepsLineEnds) {
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

TEST(Dataset, OffsetsInErrorsCountTheByteOrderMark) {
    const TemporaryDirectory place;
    const std::string mark = "\xEF\xBB\xBF", path = place.write("t.txt", mark + "ab");
    EXPECT_EQ(message_of([&] { load_tokens({.data = path}, Tokenizer::characters_of("bc", "t")); }),
              path + ": character U+0061 at byte offset 3 is not one of the 2 the tokenizer knows");
    place.write("t.txt", mark + "a\xFF");
    EXPECT_THAT(message_of([&] { load_dataset({.data = path}); }),
                HasSubstr("t.txt: invalid UTF-8 at byte offset 4"));
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

TEST(Dataset, ACheckpointsTokenizerIsUsedUnchanged) {
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

TEST(Dataset, TokenFilesWithATokenizerKnowTheirText) {
    const TemporaryDirectory place;
    const std::string path = place / "t.bin", other = place / "other.bin";
    write_token_file(path, TokenFormat::headerless, std::vector<std::int32_t>{'t', 'e', 'x', 't'});
    const Dataset dataset = load_dataset({.data = path, .val_fraction = 0.5}, Tokenizer::bytes());
    EXPECT_EQ(*dataset.tokenizer, Tokenizer::bytes());
    EXPECT_EQ(text_of(dataset, dataset.train) + text_of(dataset, dataset.validation), "text");
    EXPECT_EQ(dataset.vocabulary, 256);
    write_token_file(other, TokenFormat::gpt2_shard, std::vector<std::int32_t>{'a', 256});
    EXPECT_EQ(message_of([&] { load_dataset({.data = other}, Tokenizer::bytes()); }),
              other + ": token 1 has id 256, outside the vocabulary of 256");
    EXPECT_EQ(message_of([&] { load_dataset({.data = path, .vocabulary = 200}, Tokenizer::bytes()); }),
              path + ": its tokenizer has 256 ids, but the model's vocabulary is 200");
}

TEST(Dataset, StoriesAreSplitBetweenStoriesAndHaveASourceLoss) {
    const TemporaryDirectory place;
    const Corpus corpus = generate_corpus(30000, Seed{2});
    const std::string path = place.write("stories.txt", corpus.text);
    for (const TokenizerKind kind : {TokenizerKind::characters, TokenizerKind::bytes}) {
        const Dataset dataset = load_dataset({.data = path, .tokenizer = kind, .stories = parse_corpus});
        const std::string train = text_of(dataset, dataset.train),
                          rest = text_of(dataset, dataset.validation);
        EXPECT_EQ(train + rest, corpus.text);
        EXPECT_TRUE(train.ends_with("\n\n"));
        EXPECT_NEAR(static_cast<double>(train.size()), 0.9 * static_cast<double>(corpus.text.size()), 1000);
        EXPECT_NEAR(dataset.source_loss->nats_per_character, source_nll_per_character(*parse_corpus(rest)),
                    1e-12);
        EXPECT_EQ(dataset.source_loss->characters_per_token, 1.0);
    }
    const std::string val = place.write("val.txt", generate_corpus(1000, Seed{3}).text);
    const Dataset separate = load_dataset({.data = path, .val_data = val, .stories = parse_corpus});
    EXPECT_EQ(separate.train.size(), std::ssize(corpus.text));
    EXPECT_GT(separate.source_loss->nats_per_character, 0.0);
}

/// The grammar's probability of a text does not depend on the tokens, but the number of tokens does.
TEST(Dataset, StoriesInLongTokensAreSplitBetweenStories) {
    const TemporaryDirectory place;
    const Corpus corpus = generate_corpus(30000, Seed{2});
    const std::string path = place.write("stories.txt", corpus.text);
    BytePairTrainer trainer({.vocabulary = 400, .threads = 1});
    trainer.add(corpus.text);
    const Tokenizer tokenizer = Tokenizer::byte_pairs(trainer.train().vocabulary, "trained");
    const Dataset by_characters = load_dataset({.data = path, .stories = parse_corpus}),
                  dataset = load_dataset({.data = path, .stories = parse_corpus}, tokenizer);
    EXPECT_EQ(text_of(dataset, dataset.train), text_of(by_characters, by_characters.train));
    const std::string rest = text_of(dataset, dataset.validation);
    EXPECT_EQ(rest, text_of(by_characters, by_characters.validation));
    EXPECT_EQ(dataset.source_loss->nats_per_character, by_characters.source_loss->nats_per_character);
    EXPECT_EQ(dataset.source_loss->characters_per_token,
              static_cast<double>(rest.size()) / static_cast<double>(dataset.validation.size()));
    EXPECT_GT(dataset.source_loss->characters_per_token, 1.5);
    const std::string val = place.write("val.txt", generate_corpus(1000, Seed{3}).text);
    const Dataset separate =
        load_dataset({.data = path, .val_data = val, .stories = parse_corpus}, tokenizer);
    EXPECT_EQ(separate.source_loss->characters_per_token,
              static_cast<double>(std::filesystem::file_size(val)) /
                  static_cast<double>(separate.validation.size()));
}

/// Here one token is the end of a story with the beginning of the next one, so no token ends at the border.
TEST(Dataset, StoriesWhoseBorderIsInsideATokenAreSplitLikeOtherText) {
    const TemporaryDirectory place;
    const std::string path = place.write("t.txt", "aaaaaaaaaaaaa");
    BytePairTrainer trainer({.vocabulary = 258, .threads = 1});
    trainer.add("aaaa");
    const Tokenizer pairs = Tokenizer::byte_pairs(trainer.train().vocabulary, "trained");
    const StoryParser stories = [](std::string_view text) {
        return std::vector<Story>{{.begin = 0, .end = 11, .nll = 1},
                                  {.begin = 11, .end = text.size(), .nll = 1}};
    };
    const Dataset dataset = load_dataset({.data = path, .val_fraction = 0.3, .stories = stories}, pairs);
    EXPECT_FALSE(dataset.source_loss.has_value());
    EXPECT_EQ(dataset.train.size(), 4);  // int(0.7 * 7)
}

TEST(Dataset, InvalidFilesAreRefusedByName) {
    const TemporaryDirectory place;
    const auto message = [](const std::string& path) {
        return message_of([&] { load_dataset({.data = path}); });
    };
    EXPECT_EQ(message(""), "data: no file given (--data FILE)");
    EXPECT_THAT(message(place / "missing.txt"), HasSubstr("missing.txt: cannot be opened: No such file"));
    EXPECT_THAT(message(place.path()), HasSubstr("is a folder without files"));
    EXPECT_THAT(message(place.write("empty.txt", "")), HasSubstr("empty.txt: is empty; expected text"));
    EXPECT_THAT(message(place.write("bom.txt", "\xEF\xBB\xBF")),
                HasSubstr("bom.txt: is empty; expected text"));
    EXPECT_THAT(message(place.write("latin.txt", "caf\xE9s")),
                HasSubstr("latin.txt: invalid UTF-8 at byte offset 3"));
    EXPECT_EQ(message_of([&] { load_dataset({.data = place.write("t.txt", "x"), .val_fraction = 1.5}); }),
              "val-fraction: 1.5; expected 0 <= val-fraction < 1");
}

TEST(Dataset, StandardInputIsRefusedByName) {
    const TemporaryDirectory place;
    const std::string text = place.write("t.txt", "text");
    const std::string refusal =
        ": - is standard input, which cannot be read again; expected a file (gradtile tokenize - writes a "
        "token file)";
    EXPECT_EQ(message_of([&] { load_dataset({.data = "-"}); }), "data" + refusal);
    EXPECT_EQ(message_of([&] { load_dataset({.data = text, .val_data = "-"}); }), "val-data" + refusal);
    EXPECT_EQ(message_of([&] { load_tokens({.data = "-"}, Tokenizer::bytes()); }), "data" + refusal);
}

TEST(Dataset, TheLargerOfTwoHeaderlessFilesGivesTheVocabulary) {
    const TemporaryDirectory place;
    const std::string small = place / "small.bin", large = place / "large.bin";
    write_token_file(small, TokenFormat::headerless, std::vector<std::int32_t>{3, 1, 2});
    write_token_file(large, TokenFormat::headerless, std::vector<std::int32_t>{3, 1, 64});
    EXPECT_EQ(load_dataset({.data = small, .val_data = large}).vocabulary, 65);
    EXPECT_EQ(load_dataset({.data = large, .val_data = small}).vocabulary, 65);
    EXPECT_THAT(load_dataset({.data = small, .val_data = large}).description,
                testing::ElementsAre(small + ": headerless uint16, 3 tokens, largest id 3",
                                     large + ": headerless uint16, 3 tokens, largest id 64"));
    // A vocabulary from the settings or from a header applies to both files.
    EXPECT_EQ(message_of([&] { load_dataset({.data = small, .val_data = large, .vocabulary = 64}); }),
              large + ": token 2 has id 64, outside the vocabulary of 64");
    const std::string shard = place / "shard.bin", wild = place / "wild.bin";
    write_token_file(shard, TokenFormat::gpt2_shard, std::vector<std::int32_t>{1, 2});
    write_token_file(wild, TokenFormat::headerless, std::vector<std::int32_t>{1, 60000});
    EXPECT_EQ(message_of([&] { load_dataset({.data = shard, .val_data = wild}); }),
              wild + ": token 1 has id 60000, outside the vocabulary of 50257");
    EXPECT_EQ(load_dataset({.data = small, .val_data = shard}).vocabulary, 50257);
}

TEST(Dataset, ShardsOfTwoTokenizersAreNotTrainingAndValidationData) {
    const TemporaryDirectory place;
    const std::string gpt2 = place / "gpt2.bin", llama3 = place / "llama3.bin";
    write_token_file(gpt2, TokenFormat::gpt2_shard, std::vector<std::int32_t>{1, 2});
    write_token_file(llama3, TokenFormat::llama3_shard, std::vector<std::int32_t>{1, 2});
    EXPECT_EQ(message_of([&] { load_dataset({.data = llama3, .val_data = gpt2}); }),
              gpt2 + ": is a gpt2 token file, " + llama3 + " a llama3 one");
    EXPECT_EQ(message_of([&] { load_dataset({.data = gpt2, .val_data = llama3}); }),
              llama3 + ": is a llama3 token file, " + gpt2 + " a gpt2 one");
}

TEST(Dataset, ShardsWithAnotherNameAreNotReadAsText) {
    const TemporaryDirectory place;
    for (const TokenFormat format : {TokenFormat::gpt2_shard, TokenFormat::llama3_shard}) {
        const std::string path = place / "shard.tokens";
        write_token_file(path, format, std::vector<std::int32_t>{1, 2});
        for (const TokenizerKind kind : {TokenizerKind::bytes, TokenizerKind::characters})
            EXPECT_EQ(
                message_of([&] { load_dataset({.data = path, .tokenizer = kind}); }),
                path + ": begins as a token shard of llm.c; expected text, or a name that ends in .bin");
    }
}

TEST(Dataset, IsIdentifiedByContentAndNotByName) {
    const TemporaryDirectory place;
    const auto write_tokens = [&](const std::string& name, const std::vector<std::int32_t>& ids) {
        write_token_file(place / name, TokenFormat::headerless, ids);
        return (place / name).string();
    };
    const std::string text = place.write("a.txt", "hello world"),
                      same_text = place.write("b.txt", "hello world");
    const std::string other = place.write("c.txt", "hello-world"),
                      longer = place.write("d.txt", "hello world!");
    const JsonValue content = load_dataset({.data = text}).content;
    EXPECT_EQ(load_dataset({.data = same_text}).content, content);
    const auto refusal = [&](DatasetOptions options) {
        options.expected_content = content;
        return message_of([&] { load_dataset(options); });
    };
    EXPECT_EQ(refusal({.data = same_text}), "no error");
    EXPECT_THAT(refusal({.data = other}),
                testing::MatchesRegex(".*c.txt: is not the data that the run was made with: hash "
                                      "\"sha256:[0-9a-f]{64}\", not \"sha256:[0-9a-f]{64}\""));
    EXPECT_EQ(refusal({.data = longer}),
              longer + ": is not the data that the run was made with: bytes 12, not 11");

    const std::string train = write_tokens("train.bin", {1, 2, 3}), val = write_tokens("val.bin", {3, 2, 1}),
                      new_val = write_tokens("new.bin", {3, 3, 1});
    const DatasetOptions both{.data = train, .val_data = val};
    const JsonValue both_content = load_dataset(both).content;
    EXPECT_EQ(both_content["data"].size(), 1u);
    DatasetOptions changed = both;
    changed.expected_content = both_content;
    EXPECT_EQ(message_of([&] { load_dataset(changed); }), "no error");
    changed.val_data = new_val;
    EXPECT_THAT(message_of([&] { load_dataset(changed); }),
                HasSubstr("new.bin: is not the data that the run was made with: hash "));
}

TEST(Dataset, ShardsAreComparedOneByOne) {
    const TemporaryDirectory place;
    for (int i = 0; i < 3; ++i)
        write_token_file(place / ("s_" + std::to_string(i) + ".bin"), TokenFormat::gpt2_shard, {{i, 7}});
    const DatasetOptions made{.data = place / "s_*.bin"};
    DatasetOptions again = made;
    again.expected_content = load_dataset(made).content;
    EXPECT_EQ(again.expected_content["data"].size(), 3u);
    EXPECT_EQ(message_of([&] { load_dataset(again); }), "no error");
    write_token_file(place / "s_1.bin", TokenFormat::gpt2_shard, {{1, 8}});
    EXPECT_THAT(message_of([&] { load_dataset(again); }),
                HasSubstr("s_*.bin: file 2 is not the data that the run was made with: hash"));
    std::filesystem::remove(place / "s_1.bin");
    EXPECT_THAT(message_of([&] { load_dataset(again); }),
                HasSubstr("s_*.bin: 2 files; the run was made with 3"));
}

TEST(Dataset, MoreFilesThanACheckpointCanListAreComparedTogether) {
    const TemporaryDirectory place, cache;
    constexpr int files = static_cast<int>(max_json_values) / 3 + 1;  // also more than a cache entry can list
    for (int i = 0; i < files; ++i) place.write(concat(i, ".txt"), concat("text ", i));
    DatasetOptions options{
        .data = place.path(), .tokenizer = TokenizerKind::bytes, .token_cache = cache.path()};
    const Dataset first = load_dataset(options);
    options.expected_content = parse_json(first.content.dump(), "checkpoint");
    EXPECT_EQ(options.expected_content["data"]["files"], files);
    EXPECT_EQ(load_dataset(options).train.size(), first.train.size());  // from the cache
    place.write("7.txt", "text 8");
    EXPECT_THAT(message_of([&] { load_dataset(options); }),
                HasSubstr("is not the data that the run was made with: hash "));
    std::filesystem::remove(place / "7.txt");
    EXPECT_THAT(message_of([&] { load_dataset(options); }),
                HasSubstr(concat(": ", files - 1, " files; the run was made with ", files)));
}

TEST(Dataset, ADamagedRecordOfTheDataIsRefusedByName) {
    const TemporaryDirectory place;
    DatasetOptions options{.data = place.write("a.txt", "hello world")};
    for (const char* const record :
         {R"({"data": 1})", R"({"data": []})", R"({"data": [1]})", R"({"data": [{}]})"}) {
        options.expected_content = parse_json(record, "test");
        EXPECT_THAT(message_of([&] { load_dataset(options); }), HasSubstr("a.txt: ")) << record;
    }
    // Values that older versions, which did not record the content, wrote.
    for (const char* const none : {"null", "{}", "[]", "7"}) {
        options.expected_content = parse_json(none, "test");
        EXPECT_EQ(message_of([&] { load_dataset(options); }), "no error") << none;
    }
}

TEST(Dataset, TextThatDoesNotFitIntoMemoryIsRefused) {
    const TemporaryDirectory place;
    const std::string path = place.write("huge.txt", "text");
    if (truncate(path.c_str(), std::int64_t{1} << 42) != 0)
        GTEST_SKIP() << "no room for a sparse file of 4 TiB";
    for (const TokenizerKind kind : {TokenizerKind::characters, TokenizerKind::bytes})
        EXPECT_THAT(message_of([&] { load_dataset({.data = path, .tokenizer = kind}); }),
                    HasSubstr("huge.txt: 4398046511104 bytes of text need "));
}

TEST(Dataset, SplitsTheLargestPossibleFile) {
    const std::filesystem::path memory = "/dev/shm";  // tmpfs allows sparse 8 EiB files
    if (!is_directory(memory)) GTEST_SKIP() << "there is no " << memory;
    const std::filesystem::path path = memory / concat("gradtile-", getpid(), ".bin");
    std::ofstream(path) << "1234";
    const std::int64_t bytes = std::numeric_limits<std::int64_t>::max() - 1;
    const bool fits = truncate(path.c_str(), bytes) == 0;
    for (const double val_fraction : {0.0, 0.1, 0.5}) {
        if (!fits) break;
        const Dataset dataset =
            load_dataset({.data = path, .val_fraction = val_fraction, .vocabulary = 65536});
        EXPECT_EQ(dataset.train.size() + dataset.validation.size(), bytes / 2);
        EXPECT_EQ(dataset.validation.size() == 0, val_fraction == 0.0);
    }
    std::filesystem::remove(path);
    if (!fits) GTEST_SKIP() << "no file of 8 EiB in " << memory;
}

TEST(Dataset, TinyShakespeareIsSplitAsNanoGptSplitsIt) {
    const std::filesystem::path path =
        std::filesystem::path(GRADTILE_SOURCE_DIR) / "data" / "tinyshakespeare.txt";
    if (!exists(path)) GTEST_SKIP() << "no " << path << "; scripts/get_shakespeare.sh fetches it";
    const Dataset dataset = load_dataset({.data = path});
    EXPECT_EQ(dataset.vocabulary, 65);
    EXPECT_EQ(dataset.train.size(), 1003854);
    EXPECT_EQ(dataset.validation.size(), 111540);
    std::vector<std::int32_t> first(5);
    dataset.train.read(0, first);
    EXPECT_THAT(first,
                testing::ElementsAre(18, 47, 56, 57, 58));  // "First" in the ids from nanoGPT's prepare.py
}

}  // namespace
}  // namespace gradtile
