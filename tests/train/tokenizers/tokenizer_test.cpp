#include <gradtile/train/tokenizers/tokenizer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <gradtile/core/philox.h>
#include <gradtile/core/text/utf8.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::ElementsAre;

std::string random_text(std::size_t n, std::uint32_t seed) {
    std::string bytes;
    for (std::uint32_t i = 0; i < n; ++i)
        bytes += static_cast<char>(Philox::draw({i, 0, 0, 0}, {seed, 0})[0]);
    return bytes;
}

TEST(Utf8, EveryCodePointSurvivesAndOtherBytesAreRefused) {
    for (char32_t c = 0; c <= 0x10FFFF; ++c) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        std::string text;
        append_utf8(text, c);
        const CodePoint point = decode_utf8(text, 0);
        ASSERT_EQ(point.value, c);
        ASSERT_EQ(point.length, std::ssize(text));
        if (text.size() > 1) {  // a truncated character is invalid UTF-8
            ASSERT_EQ(decode_utf8(std::string_view(text).substr(0, text.size() - 1), 0).length, 0);
        }
    }
    for (const char* invalid :
         {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC3(", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
          "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80", "\xFE", "\xFF"})
        EXPECT_EQ(decode_utf8(invalid, 0).length, 0) << invalid;
    std::string text;
    EXPECT_THROW(append_utf8(text, 0xD800), Error);
    EXPECT_THROW(append_utf8(text, 0x110000), Error);
}

TEST(Tokenizer, BytesAcceptAnyText) {
    const Tokenizer tokenizer = Tokenizer::bytes();
    EXPECT_EQ(tokenizer.vocab_size(), 256);
    EXPECT_EQ(tokenizer.name(), "bytes");
    const std::string text = random_text(5000, 1);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, "t")), text);
    EXPECT_THAT(tokenizer.encode(std::string_view("\0\xFF", 2), "t"), ElementsAre(0, 255));
    EXPECT_TRUE(tokenizer.encode("", "t").empty());
}

TEST(Tokenizer, CharactersAreNumberedInIncreasingOrderOfCodePoint) {
    const Tokenizer tokenizer = Tokenizer::characters_of("hello, wörld €\U0001F600\n", "t");
    EXPECT_EQ(tokenizer.vocab_size(), 13);
    EXPECT_EQ(tokenizer.name(), "characters (13)");
    EXPECT_THAT(tokenizer.encode("\n lo\U0001F600", "t"), ElementsAre(0, 1, 6, 7, 12));
}

TEST(Tokenizer, CharactersDecodeToTheSameText) {
    std::string text = "\xEF\xBB\xBFline one\r\nline two\tzero";
    text += '\0';
    for (char32_t c = 0x20; c < 0x3000; c += 7) append_utf8(text, c);
    append_utf8(text, 0x10FFFF);
    const Tokenizer tokenizer = Tokenizer::characters_of(text, "t");
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, "t")), text);
}

TEST(Tokenizer, CharactersRefuseWhatIsNotUtf8NamingFileAndOffset) {
    EXPECT_EQ(message_of([] { Tokenizer::characters_of("ab\xC3(", "a.txt"); }),
              "a.txt: invalid UTF-8 at byte offset 2; the byte tokenizer (--tokenizer bytes) takes any file");
    // Here the message does not advise another tokenizer, because encode() cannot choose one.
    EXPECT_EQ(message_of([] { Tokenizer::characters_of("ab", "t").encode("aba\xFF", "b.txt"); }),
              "b.txt: invalid UTF-8 at byte offset 3");
    EXPECT_EQ(message_of([] { Tokenizer::characters_of("", "a.txt"); }), "a.txt: is empty; expected text");
}

TEST(Tokenizer, AnUnknownCharacterIsNamedWithItsOffset) {
    const Tokenizer tokenizer = Tokenizer::characters_of("abc", "t");
    EXPECT_EQ(message_of([&] { tokenizer.encode("cabé", "prompt"); }),
              "prompt: character U+00E9 at byte offset 3 is not one of the 3 the tokenizer knows");
    EXPECT_THROW(tokenizer.encode("\U0001F600", "prompt"), Error);
    EXPECT_THROW(tokenizer.decode(std::vector<std::int32_t>{3}), Error);
    EXPECT_THROW(tokenizer.decode(std::vector<std::int32_t>{-1}), Error);
    EXPECT_THROW(Tokenizer::bytes().decode(std::vector<std::int32_t>{256}), Error);
}

TEST(Tokenizer, JsonGivesTheSameTokenizer) {
    const Tokenizer characters = Tokenizer::characters_of(std::string("\"\\\n\0é€", 9), "t");
    for (const Tokenizer& tokenizer : {Tokenizer::bytes(), characters})
        EXPECT_EQ(Tokenizer::from_json(tokenizer.to_json(), "c.h5"), tokenizer);
    EXPECT_NE(characters, Tokenizer::bytes());
    EXPECT_NE(characters, Tokenizer::characters_of("abc", "t"));
}

TEST(Tokenizer, DamagedJsonIsRefused) {
    for (const char* text :
         {"null", "[]", "{}", R"({"kind":3})", R"({"kind":"words"})", R"({"kind":"characters"})",
          R"({"kind":"characters","characters":""})", R"({"kind":"characters","characters":"ba"})",
          R"({"kind":"characters","characters":"aa"})"})
        EXPECT_THAT(message_of([&] { Tokenizer::from_json(text, "c.h5"); }),
                    testing::StartsWith("c.h5: tokenizer"))
            << text;
}

}  // namespace
}  // namespace gradtile
