// Documents as tokens: their borders and targets, and the cache on disk.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/train/data/data_loader.h>
#include <gradtile/train/data/dataset.h>
#include <gradtile/train/data/examples.h>
#include <gradtile/train/data/tokenized_documents.h>

#include <support/error_message.h>
#include <support/temporary_directory.h>

namespace gradtile {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using testing::ElementsAre;
using testing::HasSubstr;

std::string text_of(const TokenSequence& tokens) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens.size()));
    tokens.read(0, ids);
    return Tokenizer::bytes().decode(ids);
}

/// The texts of bytes, with brackets around the targets.
std::string marked(const TokenSequence& tokens) {
    const std::string text = text_of(tokens);
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i)
        result += tokens.examples()->is_target[i] ? concat('[', text[i], ']') : std::string(1, text[i]);
    return result;
}

TEST(TokenizedDocuments, TextsEndWithABlankLineAndAreSplitAsWholes) {
    const TemporaryDirectory place;
    std::string rows;
    for (char c = 'a'; c <= 'j'; ++c) rows += std::string("{\"text\":\"") + c + "\"}\n";
    const std::string path = place.write("t.jsonl", rows);
    const Dataset dataset =
        load_dataset({.data = path, .val_fraction = 0.2, .tokenizer = TokenizerKind::bytes});
    EXPECT_EQ(text_of(dataset.train), "a\n\nb\n\nc\n\nd\n\ne\n\nf\n\ng\n\nh\n\n");
    EXPECT_EQ(text_of(dataset.validation), "i\n\nj\n\n");
    EXPECT_EQ(dataset.train.examples(), nullptr) << "windows reach over documents";
    EXPECT_THAT(dataset.description.front(), HasSubstr("t.jsonl: 10 documents, 30 bytes"));
    const Dataset characters = load_dataset({.data = path});
    EXPECT_EQ(characters.vocabulary, 11) << "ten letters and the line break";
}

TEST(TokenizedDocuments, FilesOfAFolderAreDocuments) {
    const TemporaryDirectory place;
    std::filesystem::create_directories(place / "data");
    place.write("data/b.txt", "two");
    place.write("data/a.txt", "one");
    const Dataset dataset = load_dataset(
        {.data = (place / "data").string(), .val_fraction = 0, .tokenizer = TokenizerKind::bytes});
    EXPECT_EQ(text_of(dataset.train), "one\n\ntwo\n\n");
    EXPECT_EQ(dataset.content["data"].size(), 2u);
}

TEST(TokenizedDocuments, CompletionsAreTargets) {
    const TemporaryDirectory place;
    const std::string path = place.write("p.jsonl", R"({"prompt":"ab","completion":"cd"})"
                                                    "\n"
                                                    R"({"prompt":"","completion":"e"})");
    DatasetOptions options{.data = path, .val_fraction = 0, .tokenizer = TokenizerKind::bytes};
    EXPECT_EQ(marked(load_dataset(options).train), "ab[c][d][\n][\n]e[\n][\n]");
    options.train_on = TrainOn::all;
    EXPECT_EQ(marked(load_dataset(options).train), "a[b][c][d][\n][\n]e[\n][\n]");
}

class TokenCache : public testing::Test {
  protected:
    TemporaryDirectory place_;
    std::string data_ = place_.write("c.jsonl", R"({"messages":[{"role":"user","content":"a"},)"
                                                R"({"role":"assistant","content":"bc"}]})"
                                                "\n"
                                                R"({"messages":[{"role":"assistant","content":"d"}]})"
                                                "\n");
    std::string cache_ = place_ / "cache";
    DatasetOptions options_{.data = data_, .val_fraction = 0.5, .token_cache = cache_};

    std::filesystem::path entry(std::string_view extension) const {
        for (const auto& file : std::filesystem::directory_iterator(cache_))
            if (file.path().extension() == extension) return file.path();
        return {};
    }
    std::ptrdiff_t entries() const {
        return std::distance(std::filesystem::directory_iterator(cache_), {}) / 2;
    }
    static void expect_equal(const Dataset& a, const Dataset& b) {
        for (const auto part : {&Dataset::train, &Dataset::validation}) {
            const TokenSequence &x = a.*part, &y = b.*part;
            ASSERT_EQ(x.size(), y.size());
            std::vector<std::int32_t> x_ids(static_cast<std::size_t>(x.size())), y_ids(x_ids);
            x.read(0, x_ids);
            y.read(0, y_ids);
            EXPECT_EQ(x_ids, y_ids);
            EXPECT_EQ(x.examples()->begins, y.examples()->begins);
            EXPECT_EQ(x.examples()->is_target, y.examples()->is_target);
        }
        EXPECT_EQ(a.tokenizer, b.tokenizer);
        EXPECT_EQ(a.content, b.content);
        EXPECT_EQ(a.description, b.description);
    }
};

TEST_F(TokenCache, GivesTheSameDataWithoutReadingTheFiles) {
    const Dataset first = load_dataset(options_);
    EXPECT_EQ(entries(), 1);
    DatasetOptions without = options_;
    without.token_cache = "";
    expect_equal(first, load_dataset(without));
    // The same size and time: the file itself is not read again.
    const auto time = std::filesystem::last_write_time(data_);
    place_.write("c.jsonl", std::string(std::filesystem::file_size(data_), 'x'));
    std::filesystem::last_write_time(data_, time);
    expect_equal(first, load_dataset(options_));
    EXPECT_EQ(entries(), 1);
    std::filesystem::last_write_time(data_, time + std::chrono::seconds(1));
    EXPECT_THAT(message_of([&] { load_dataset(options_); }), HasSubstr("c.jsonl: line 1: not JSON"));
}

TEST_F(TokenCache, HasAnEntryForEachTokenizerAndOption) {
    load_dataset(options_);
    DatasetOptions other = options_;
    other.tokenizer = TokenizerKind::bytes;
    load_dataset(other);
    other.train_on = TrainOn::all;
    load_dataset(other);
    EXPECT_EQ(entries(), 3);
}

TEST_F(TokenCache, IsRefusedWhereItWouldKeepNothing) {
    options_.data = place_.write("a.txt", "some text");
    EXPECT_THAT(message_of([&] { load_dataset(options_); }),
                HasSubstr("a.txt: is a text that is read by characters"));
    options_.tokenizer = TokenizerKind::bytes;
    EXPECT_THAT(message_of([&] { load_dataset(options_); }),
                HasSubstr("a.txt: is a text that is read by bytes"));
    options_.data = place_.write("a.bin", "0123456789abcdef");
    EXPECT_THAT(message_of([&] { load_dataset(options_); }),
                HasSubstr("a.bin: is a token file; expected documents"));
    EXPECT_FALSE(exists(std::filesystem::path(cache_)));
}

TEST_F(TokenCache, DamageIsRefusedByName) {
    load_dataset(options_);
    const std::filesystem::path documents = entry(".documents"), ids = entry(".bin");
    const auto size = std::filesystem::file_size(documents);
    std::filesystem::resize_file(documents, size - 1);
    EXPECT_THAT(message_of([&] { load_dataset(options_); }),
                HasSubstr(documents.string() + ": damaged: its checksum"));
    std::filesystem::resize_file(documents, size + 1);
    EXPECT_THAT(message_of([&] { load_dataset(options_); }), HasSubstr("remove the file"));
    std::filesystem::resize_file(documents, 10);
    EXPECT_THAT(message_of([&] { load_dataset(options_); }), HasSubstr("damaged: it is too short"));
    std::filesystem::remove(documents);
    load_dataset(options_);
    std::filesystem::resize_file(ids, 4);
    EXPECT_THAT(message_of([&] { load_dataset(options_); }),
                HasSubstr(ids.string() + ": 4 bytes; expected "));
}

/// A run would train on other data if a byte of the ids, places or targets had changed.
TEST_F(TokenCache, EachChangedByteIsRefused) {
    load_dataset(options_);
    for (const std::filesystem::path& file : {entry(".documents"), entry(".bin")}) {
        const std::string content = test::contents_of(file);
        for (std::size_t at = 0; at < content.size(); ++at) {
            std::string changed = content;
            changed[at] = static_cast<char>(changed[at] ^ 1);
            std::ofstream(file) << changed;
            EXPECT_THAT(message_of([&] { load_dataset(options_); }), HasSubstr(file.string())) << at;
        }
        std::ofstream(file) << content;
    }
    load_dataset(options_);
}

}  // namespace
}  // namespace gradtile
