#include <gradtile/train/token_file.h>

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <support/error_message.h>

#include "temporary_directory.h"

namespace gradtile {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using testing::HasSubstr;

const std::vector<std::int32_t> ids = {0, 5, 50256, 7, 1, 2, 3};
constexpr TokenFormat formats[] = {TokenFormat::gpt2_shard, TokenFormat::llama3_shard,
                                   TokenFormat::headerless};

std::vector<std::int32_t> all_of(const TokenSequence& tokens) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(tokens.size()));
    tokens.read(0, out);
    return out;
}

/// The bytes of a shard whose header says what the test wants.
std::string shard(std::int32_t magic, std::int32_t version, std::int32_t count, std::size_t body_bytes) {
    std::string bytes(1024 + body_bytes, '\0');
    const std::int32_t header[] = {magic, version, count};
    std::memcpy(bytes.data(), header, sizeof(header));
    return bytes;
}

TEST(TokenFile, EveryFormatComesBackAsItWasWritten) {
    const TemporaryDirectory place;
    for (const TokenFormat format : formats) {
        const std::string path = place / "tokens.bin";
        write_token_file(path, format, ids);
        const TokenFile file = open_token_file(path);
        EXPECT_EQ(file.format, format);
        EXPECT_EQ(all_of(file.tokens), ids);
        EXPECT_EQ(file.vocabulary, format == TokenFormat::llama3_shard ? 128256 : 50257);
    }
}

TEST(TokenFile, TheFormatsAreThoseOfLlmCAndNanoGpt) {
    const TemporaryDirectory place;
    const auto size = [&](const char* name) { return std::filesystem::file_size(place / name); };
    for (const TokenFormat format : formats)
        write_token_file(place / std::string(name_of(format)), format, ids);
    EXPECT_EQ(size("gpt2"), 1024 + 7 * 2u);
    EXPECT_EQ(size("llama3"), 1024 + 7 * 4u);
    EXPECT_EQ(size("headerless"), 7 * 2u);
    std::ifstream file(place / "llama3", std::ios::binary);
    std::int32_t header[4] = {};
    file.read(reinterpret_cast<char*>(header), sizeof(header));
    EXPECT_THAT(header, testing::ElementsAre(20240801, 7, 7, 0));
}

TEST(TokenFile, ShardsAreReadAsOneSequence) {
    const TemporaryDirectory place;
    write_token_file(place / "train_001.bin", TokenFormat::gpt2_shard, std::vector<std::int32_t>{4, 5});
    write_token_file(place / "train_000.bin", TokenFormat::gpt2_shard, std::vector<std::int32_t>{1, 2, 3});
    const TokenFile all = open_token_file(place / "train_*.bin");
    EXPECT_THAT(all_of(all.tokens), testing::ElementsAre(1, 2, 3, 4, 5));
    EXPECT_THAT(all_of(all.tokens.slice(2, 4)), testing::ElementsAre(3, 4));
    std::vector<std::int32_t> across(3);
    all.tokens.read(2, across);
    EXPECT_THAT(across, testing::ElementsAre(3, 4, 5));
    write_token_file(place / "train_002.bin", TokenFormat::llama3_shard, ids);
    EXPECT_THAT(message_of([&] { open_token_file(place / "train_*.bin"); }),
                HasSubstr("train_002.bin: is a llama3 token file, the one before it a gpt2 one"));
    EXPECT_THAT(message_of([&] { open_token_file(place / "none_*.bin"); }), HasSubstr("no file matches"));
}

TEST(TokenFile, AnIdOutsideTheVocabularyIsNamedWithItsPosition) {
    const TemporaryDirectory place;
    for (const TokenFormat format : formats) {
        const std::string path = place / "tokens.bin";
        write_token_file(path, format, ids);
        EXPECT_EQ(message_of([&] { open_token_file(path, 50256); }),
                  path + ": token 2 has id 50256, outside the vocabulary of 50256");
        EXPECT_EQ(open_token_file(path, 50300).vocabulary, 50300);
    }
    const std::string path = place.write("wide.bin", shard(20240801, 7, 1, 0) + "\xFF\xFF\xFF\xFF");
    EXPECT_EQ(message_of([&] { open_token_file(path); }),
              path + ": token 0 has id 4294967295, outside the vocabulary of 128256");
}

TEST(TokenFile, TheIdsOfAHeaderlessFileGiveItsVocabulary) {
    const TemporaryDirectory place;
    write_token_file(place / "t.bin", TokenFormat::headerless, std::vector<std::int32_t>{3, 64, 9});
    EXPECT_EQ(open_token_file(place / "t.bin").vocabulary, 65);
}

TEST(TokenFile, DamagedFilesAreRefusedByName) {
    const TemporaryDirectory place;
    const auto refused = [&](std::string_view bytes, const std::string& why) {
        const std::string path = place.write("bad.bin", bytes);
        EXPECT_EQ(message_of([&] { open_token_file(path); }), path + ": " + why);
    };
    refused("", "is empty; expected tokens");
    refused("abc", "odd size: 3 bytes are no whole number of 16-bit tokens");
    refused("a", "odd size: 1 bytes are no whole number of 16-bit tokens");
    refused(shard(20240520, 1, 3, 4), "truncated: its header counts 3 tokens of 2 bytes, 4 bytes follow");
    refused(shard(20240520, 1, 3, 5), "truncated: its header counts 3 tokens of 2 bytes, 5 bytes follow");
    refused(shard(20240520, 1, 3, 8), "damaged: its header counts 3 tokens of 2 bytes, yet 8 bytes follow");
    refused(shard(20240520, 1, -1, 8), "damaged: its header counts -1 tokens");
    refused(shard(20240520, 1, 0, 0), "holds no tokens");
    refused(shard(20240520, 2, 1, 2), "gpt2 token shard of version 2; version 1 is supported");
    refused(shard(20240801, 1, 1, 4), "llama3 token shard of version 1; version 7 is supported");
    refused(shard(20240801, 7, 2, 4), "truncated: its header counts 2 tokens of 4 bytes, 4 bytes follow");
    refused(shard(20240520, 1, 1, 2).substr(0, 100),
            "truncated: 100 bytes, less than a shard's header of 1024");
    refused(shard(20240326, 3, 1, 2), "wrong magic 20240326: this is a model of llm.c, not tokens");
    refused(shard(0x08D83401 /* 20240392 byte-swapped is no magic */, 1, 1, 1),
            "odd size: 1025 bytes are no whole number of 16-bit tokens");
    refused(shard(static_cast<std::int32_t>(__builtin_bswap32(20240520)), 1, 1, 2),
            "wrong magic: a big-endian token shard; little-endian is supported");
}

TEST(TokenFile, FilesThatCannotBeReadAreRefusedByName) {
    const TemporaryDirectory place;
    const auto message = [](const std::string& path) { return message_of([&] { open_token_file(path); }); };
    EXPECT_EQ(message(place / "missing.bin"),
              (place / "missing.bin").string() + ": cannot be opened: No such file or directory");
    EXPECT_EQ(message(place.path()), place.path().string() + ": is a directory; expected a file");
    const std::string pipe = place / "pipe.bin";
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_EQ(message(pipe), pipe + ": is not a regular file");
    if (geteuid() == 0) return;  // root reads everything
    const std::string secret = place.write("secret.bin", "ab");
    ASSERT_EQ(chmod(secret.c_str(), 0), 0);
    EXPECT_EQ(message(secret), secret + ": cannot be opened: Permission denied");
}

TEST(TokenFile, WritersRefuseIdsThatDoNotFit) {
    const TemporaryDirectory place;
    const std::string path = place / "t.bin";
    EXPECT_EQ(message_of([&] {
                  write_token_file(path, TokenFormat::gpt2_shard, std::vector{1, 65536});
              }),
              path + ": token 1 has id 65536; a gpt2 file holds 0 to 65535");
    EXPECT_THROW(write_token_file(path, TokenFormat::llama3_shard, std::vector{-1}), Error);
    EXPECT_THAT(message_of([&] { write_token_file(place / "no" / "t.bin", TokenFormat::headerless, ids); }),
                HasSubstr("cannot be written: No such file or directory"));
}

TEST(TokenFile, MoreThanTwoGibibytesAreReadAtTheRightPlace) {
    const TemporaryDirectory place;
    const std::string path = place / "huge.bin";
    constexpr std::int64_t count = (std::int64_t{5} << 30) / 2;
    write_token_file(path, TokenFormat::headerless, std::vector{1});
    if (truncate(path.c_str(), count * 2) != 0) GTEST_SKIP() << "no room for a sparse file of 5 GiB";
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp((count - 1) * 2);
    file.write("\x07", 1);
    file.close();
    // The vocabulary of all 16-bit ids needs no scan, so only two pages are read.
    const TokenSequence tokens = open_token_file(path, 65536).tokens;
    EXPECT_EQ(tokens.size(), count);
    std::vector<std::int32_t> last(2);
    tokens.read(count - 2, last);
    EXPECT_THAT(last, testing::ElementsAre(0, 7));
}

}  // namespace
}  // namespace gradtile
