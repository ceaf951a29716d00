#include <gradtile/train/data/token_file.h>

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <support/error_message.h>

#include <support/temporary_directory.h>

namespace gradtile {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using testing::HasSubstr;

const std::vector<std::int32_t> ids = {0, 5, 50256, 7, 1, 2, 3};
/// Returns the options that open a file in this format when only the format's type is known.
TokenFileOptions for_format(TokenFormat format, std::int64_t vocabulary = 0) {
    const bool told = format == TokenFormat::headerless_uint32;
    return {.vocabulary = vocabulary, .type = told ? TokenType::uint32 : TokenType::automatic};
}

std::vector<std::int32_t> all_of(const TokenSequence& tokens) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(tokens.size()));
    tokens.read(0, out);
    return out;
}

/// Returns the bytes of a shard with the given header.
std::string shard(std::int32_t magic, std::int32_t version, std::int32_t count, std::size_t body_bytes) {
    std::string bytes(1024 + body_bytes, '\0');
    const std::int32_t header[] = {magic, version, count};
    std::memcpy(bytes.data(), header, sizeof(header));
    return bytes;
}

TEST(TokenFile, EveryFormatIsReadBackUnchanged) {
    const TemporaryDirectory place;
    for (const auto& [format, name] : EnumNames<TokenFormat>::names) {
        const std::string path = place / "tokens.bin";
        write_token_file(path, format, ids);
        const TokenFile file = open_token_file(path, for_format(format));
        EXPECT_EQ(file.format, format);
        EXPECT_EQ(all_of(file.tokens), ids);
        EXPECT_EQ(file.vocabulary, format == TokenFormat::llama3_shard ? 128256 : 50257);
    }
}

TEST(TokenFile, TheFormatsAreThoseOfLlmCAndNanoGpt) {
    const TemporaryDirectory place;
    const auto size = [&](const char* name) { return std::filesystem::file_size(place / name); };
    for (const auto& [format, name] : EnumNames<TokenFormat>::names)
        write_token_file(place / std::string(name), format, ids);
    EXPECT_EQ(size("gpt2"), 1024 + 7 * 2u);
    EXPECT_EQ(size("llama3"), 1024 + 7 * 4u);
    EXPECT_EQ(size("headerless"), 7 * 2u);
    EXPECT_EQ(size("headerless-uint32"), 7 * 4u);
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
    for (const auto& [format, name] : EnumNames<TokenFormat>::names) {
        const std::string path = place / "tokens.bin";
        write_token_file(path, format, ids);
        EXPECT_EQ(message_of([&, format = format] { open_token_file(path, for_format(format, 50256)); }),
                  path + ": token 2 has id 50256, outside the vocabulary of 50256");
        EXPECT_EQ(open_token_file(path, for_format(format, 50300)).vocabulary, 50300);
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
    refused("abc", "odd size: 3 bytes are not a whole number of 16-bit tokens");
    refused("a", "odd size: 1 bytes are not a whole number of 16-bit tokens");
    refused(shard(20240520, 1, 3, 4), "truncated: its header counts 3 tokens of 2 bytes, 4 bytes follow");
    refused(shard(20240520, 1, 3, 5), "truncated: its header counts 3 tokens of 2 bytes, 5 bytes follow");
    refused(shard(20240520, 1, 3, 8), "damaged: its header counts 3 tokens of 2 bytes, but 8 bytes follow");
    refused(shard(20240520, 1, -1, 8), "damaged: its header counts -1 tokens");
    refused(shard(20240520, 1, 0, 0), "holds no tokens");
    refused(shard(20240520, 2, 1, 2), "gpt2 token shard of version 2; version 1 is supported");
    refused(shard(20240801, 1, 1, 4), "llama3 token shard of version 1; version 7 is supported");
    refused(shard(20240801, 7, 2, 4), "truncated: its header counts 2 tokens of 4 bytes, 4 bytes follow");
    refused(shard(20240520, 1, 1, 2).substr(0, 100),
            "truncated: 100 bytes, less than a shard's header of 1024");
    refused(shard(20240326, 3, 1, 2), "wrong magic 20240326: this is a model of llm.c, not tokens");
    refused(shard(static_cast<std::int32_t>(__builtin_bswap32(20240520)), 1, 1, 2),
            "wrong magic: a big-endian token shard; little-endian is supported");
}

TEST(TokenFile, AHeaderWithAWrongMagicNumberIsRefused) {
    const TemporaryDirectory place;
    const auto message = [&](std::string_view bytes, TokenType type = TokenType::automatic) {
        const std::string path = place.write("bad.bin", bytes);
        const std::string text = message_of([&] { open_token_file(path, {.type = type}); });
        return text.starts_with(path + ": ") ? text.substr(path.size() + 2) : text;
    };
    const std::string expected = "expected 20240520 (gpt2) or 20240801 (llama3)";
    // Tests magic numbers that are wrong by one, and a date that is no llm.c format, with and without a valid
    // header, for every token type.
    for (const std::int32_t magic : {20240519, 20240521, 20240802, 20241231}) {
        const std::string wrong = "wrong magic " + std::to_string(magic) + "; " + expected;
        EXPECT_EQ(message(shard(magic, 1, 100, 200)), wrong);
        EXPECT_EQ(message(shard(magic, 1, 100, 200).substr(0, 500)), wrong);
        EXPECT_EQ(message(shard(magic, 1, 100, 200), TokenType::uint16), wrong);
        EXPECT_EQ(
            message(shard(static_cast<std::int32_t>(__builtin_bswap32(static_cast<std::uint32_t>(magic))), 1,
                          1, 2)),
            "wrong magic: a big-endian token shard; little-endian is supported");
    }
    // Any magic number with a header whose count matches the file.
    for (const std::int32_t magic : {20250607, 1, 0x12345678})
        for (const int id_bytes : {2, 4})
            EXPECT_EQ(message(shard(magic, 3, 100, 100 * static_cast<std::size_t>(id_bytes))),
                      "wrong magic " + std::to_string(magic) +
                          " before a shard's header of 100 tokens, as many as the file holds; " + expected);
    // A header whose count does not match the file is no header.
    EXPECT_EQ(message(shard(20250607, 3, 101, 200)), "no error");
    EXPECT_EQ(message(shard(20250607, 0, 100, 200)), "no error");
}

/// Returns a file's little-endian bytes.
template <class Id>
std::string bytes_of(const std::vector<Id>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Id)};
}

TEST(TokenFile, HeaderlessIdsOf32BitsNeedTheirType) {
    const TemporaryDirectory place;
    for (const std::uint32_t vocabulary : {50257u, 128256u, 262144u}) {
        std::vector<std::uint32_t> wide(3'000'000);  // larger than the sampled parts
        for (std::size_t i = 0; i < wide.size(); ++i)
            wide[i] = static_cast<std::uint32_t>(i) * 2654435761u % vocabulary;
        wide[5] = vocabulary - 1;
        const std::string path = place.write("wide.bin", bytes_of(wide));
        EXPECT_EQ(
            message_of([&] { open_token_file(path); }),
            path +
                ": every second 16-bit number is 0 to 3, as in a file of 32-bit tokens; use --token-type "
                "uint32, or uint16 if they are 16-bit tokens");
        const TokenFile file = open_token_file(path, {.type = TokenType::uint32});
        EXPECT_EQ(file.format, TokenFormat::headerless_uint32);
        EXPECT_EQ(file.vocabulary, vocabulary);
        const std::vector<std::int32_t> read = all_of(file.tokens);
        EXPECT_TRUE(std::equal(read.begin(), read.end(), wide.begin(), wide.end()));
        EXPECT_EQ(open_token_file(path, {.type = TokenType::uint16}).tokens.size(), 6'000'000);
    }
    // Tests 16-bit ids that resemble 32-bit ids: ids from a four-token vocabulary, where every id is 0 to 3,
    // and files with few ids.
    std::vector<std::uint16_t> small(1000), few = {300, 0, 300, 1, 300, 0};
    for (std::size_t i = 0; i < small.size(); ++i) small[i] = static_cast<std::uint16_t>(i * i % 4);
    EXPECT_EQ(open_token_file(place.write("small.bin", bytes_of(small))).format, TokenFormat::headerless);
    EXPECT_EQ(open_token_file(place.write("few.bin", bytes_of(few))).format, TokenFormat::headerless);
    EXPECT_EQ(open_token_file(place.write("zeros.bin", std::string(4096, '\0'))).vocabulary, 1);
}

TEST(TokenFile, ATypeThatContradictsTheHeaderIsRefused) {
    const TemporaryDirectory place;
    const std::string path = place / "tokens.bin";
    write_token_file(path, TokenFormat::gpt2_shard, ids);
    EXPECT_EQ(open_token_file(path, {.type = TokenType::uint16}).tokens.size(), 7);
    EXPECT_EQ(message_of([&] { open_token_file(path, {.type = TokenType::uint32}); }),
              path + ": is a gpt2 shard of uint16 tokens, not uint32 (token-type)");
    const std::string odd = place.write("odd.bin", "abcdef");
    EXPECT_EQ(message_of([&] { open_token_file(odd, {.type = TokenType::uint32}); }),
              odd + ": odd size: 6 bytes are not a whole number of 32-bit tokens");
    const std::string large = place.write("large.bin", "\xFF\xFF\xFF\xFF");
    EXPECT_EQ(message_of([&] { open_token_file(large, {.type = TokenType::uint32}); }),
              large + ": token 0 has id 4294967295, outside the vocabulary of 2147483648");
}

TEST(TokenFile, DescribesItself) {
    const TemporaryDirectory place;
    const std::string path = place / "t.bin";
    const auto description = [&](TokenFormat format) {
        write_token_file(path, format, ids);
        return open_token_file(path, for_format(format)).description();
    };
    EXPECT_EQ(description(TokenFormat::gpt2_shard), "llm.c shard, version 1, 7 uint16 tokens");
    EXPECT_EQ(description(TokenFormat::llama3_shard), "llm.c shard, version 7, 7 uint32 tokens");
    EXPECT_EQ(description(TokenFormat::headerless), "headerless uint16, 7 tokens, largest id 50256");
    EXPECT_EQ(description(TokenFormat::headerless_uint32), "headerless uint32, 7 tokens, largest id 50256");
    write_token_file(path, TokenFormat::headerless, std::vector<std::int32_t>(1'234'567, 9));
    EXPECT_EQ(open_token_file(path, {.vocabulary = 10}).description(), "headerless uint16, 1,234,567 tokens");
    for (const char* const name : {"s_1.bin", "s_2.bin"})
        write_token_file(place / name, TokenFormat::gpt2_shard, ids);
    EXPECT_EQ(open_token_file(place / "s_*.bin").description(),
              "2 files, llm.c shards, version 1, 14 uint16 tokens");
}

TEST(TokenFile, MoreShardsThanTheUsualLimitOnOpenFilesAreRead) {
    const TemporaryDirectory place;
    struct rlimit usual {};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
    if (usual.rlim_max < 700) GTEST_SKIP() << "the limit on open files cannot be raised to 700";
    constexpr int shards = 100;
    for (int i = 0; i < shards; ++i)
        write_token_file(place / ("s_" + std::to_string(1000 + i) + ".bin"), TokenFormat::headerless,
                         {{i, i}});
    struct rlimit low = usual;
    low.rlim_cur = 64;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    EXPECT_EQ(message_of([&] { EXPECT_EQ(all_of(open_token_file(place / "s_*.bin").tokens)[199], 99); }),
              "no error");
    setrlimit(RLIMIT_NOFILE, &usual);
}

TEST(TokenFile, AnIdThatChangesAfterOpeningNeverReachesTheModel) {
    const TemporaryDirectory place;
    for (const auto& [format, name] : EnumNames<TokenFormat>::names) {
        const std::string path = place / "tokens.bin";
        write_token_file(path, format, ids);
        const TokenFile file = open_token_file(path, for_format(format, 50257));
        std::fstream(path, std::ios::binary | std::ios::in | std::ios::out | std::ios::ate)
            .seekp(-2, std::ios::end)
            .write("\xFF\xFF", 2);
        EXPECT_THAT(message_of([&] { all_of(file.tokens); }),
                    HasSubstr("tokens.bin: tokens [0, 7) have an id"));
        EXPECT_THAT(message_of([&] { all_of(file.tokens); }),
                    HasSubstr("outside the vocabulary of 50257 (it was changed while it was read)"));
    }
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
    if (geteuid() == 0) return;  // root can read every file
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
                HasSubstr("t.bin: cannot create: No such file or directory"));
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
    // A vocabulary with all 16-bit ids needs no scan, so only two pages are read.
    const TokenSequence tokens = open_token_file(path, {.vocabulary = 65536}).tokens;
    EXPECT_EQ(tokens.size(), count);
    std::vector<std::int32_t> last(2);
    tokens.read(count - 2, last);
    EXPECT_THAT(last, testing::ElementsAre(0, 7));
}

}  // namespace
}  // namespace gradtile
