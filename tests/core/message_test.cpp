#include <gradtile/core/text/message.h>

#include <gtest/gtest.h>

#include <bit>
#include <charconv>
#include <filesystem>
#include <new>

#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/parse_double.h>
#include <gradtile/core/text/utf8.h>

namespace gradtile {
namespace {

TEST(Message, NamesInEveryScriptStayAsTheyAre) {
    for (const char* name :
         {"runs/demo", "\xC3\xBC\x62\x65r.txt", "\xE8\xAF\xAD\xE6\x96\x99.txt", "\xD9\x85\xD9\x84\xD9\x81",
          "\xF0\x9F\x98\x80", "C:\\data\\n", "a\xE2\x80\x8D\x62"})
        EXPECT_EQ(printable(name), name);
}

TEST(Message, EscapesCharactersThatControlATerminal) {
    EXPECT_EQ(printable("a\x1b[2Jb"), "a\\u001b[2Jb");
    EXPECT_EQ(printable("\x1b]0;title\x07"), "\\u001b]0;title\\u0007");
    EXPECT_EQ(printable("a\nb\tc\rd\be\f"), "a\\nb\\tc\\rd\\be\\f");
    EXPECT_EQ(printable(std::string_view("\0\x7f", 2)), "\\u0000\\u007f");
    EXPECT_EQ(printable("\xC2\x9B"
                        "31m"),
              "\\u009b31m");  // the control character CSI, which begins an escape sequence
    EXPECT_EQ(printable("gpj.\xE2\x80\xAE"
                        "exe"),
              "gpj.\\u202eexe");  // right-to-left override
    EXPECT_EQ(printable("\xE2\x81\xA6\xE2\x80\xA8\xEF\xBB\xBF"), "\\u2066\\u2028\\ufeff");
    EXPECT_EQ(printable("\xF3\xA0\x81\x81"), "\\udb40\\udc41");  // an invisible tag
}

TEST(Message, EscapesBytesThatAreNotUtf8) {
    EXPECT_EQ(printable("caf\xe9.txt"), "caf\\xe9.txt");
    EXPECT_EQ(printable("\x9b"
                        "31m"),
              "\\x9b31m");  // the byte that is CSI on an 8-bit terminal
    EXPECT_EQ(printable("\xE8\xAF"), "\\xe8\\xaf");
}

TEST(Message, TheModelsTextKeepsItsLinesAndTabs) {
    EXPECT_EQ(printable("a\n\tb\r\x1b", {.max_characters = 0, .multiline = true}), "a\n\tb\\r\\u001b");
}

TEST(Message, OmitsTheMiddleOfALongText) {
    const std::string name = "begin" + std::string(100000, '\x01') + "end: expected less";
    const std::string shown = printable(name);
    EXPECT_LE(shown.size(), 2000u);
    EXPECT_TRUE(shown.starts_with("begin\\u0001\\u0001"));
    EXPECT_TRUE(shown.ends_with("\\u0001end: expected less"));
    EXPECT_NE(shown.find(" ...[100023 bytes]... "), std::string::npos);

    // The limit counts characters and not bytes, and no character is cut in two.
    std::string chinese;
    for (int i = 0; i < 200; ++i) chinese += "\xE8\xAF\xAD";
    EXPECT_EQ(printable_name(chinese), chinese);
    chinese += "\xE8\xAF\xAD";
    EXPECT_TRUE(is_utf8(printable_name(chinese)));
    EXPECT_LT(printable_name(chinese).size(), chinese.size());
    for (std::size_t max_characters = 1; max_characters < 40; ++max_characters)
        EXPECT_TRUE(is_utf8(printable(chinese, {.max_characters = max_characters})));
}

TEST(Message, PrintableTextIsUnchanged) {
    std::string every_byte;
    for (int i = 0; i < 1024; ++i) every_byte += static_cast<char>(i * 7);
    for (const std::size_t max_characters : {0u, 50u, 333u, 100000u}) {
        const std::string once = printable(every_byte, {.max_characters = max_characters});
        EXPECT_EQ(printable(once, {.max_characters = max_characters}), once);
        EXPECT_TRUE(is_utf8(once));
        for (const char c : once) EXPECT_FALSE(c == 0x7F || (c >= 0 && c < 0x20));
    }
}

TEST(Message, JsonStaysTheSameJson) {
    std::string text;
    for (char32_t c = 1; c < 0x11000; ++c)
        if (c < 0xD800 || c > 0xDFFF) append_utf8(text, c);
    append_utf8(text, 0xE0041);
    const JsonValue value = JsonValue::object({{"name", text}});
    const std::string shown = printable(value.dump(2), {.max_characters = 0, .multiline = true});
    EXPECT_EQ(parse_json(shown, "test"), value);
    EXPECT_EQ(shown.find("\xE2\x80\xAE"), std::string::npos);
}

TEST(Message, ErrorsOfLibrariesAreInPlainWords) {
    EXPECT_EQ(gradtile::message_of(std::bad_alloc()), "out of memory");
    EXPECT_EQ(gradtile::message_of(std::bad_array_new_length()), "out of memory");
    EXPECT_EQ(gradtile::message_of(std::runtime_error("[x] y")), "[x] y");
    const std::filesystem::filesystem_error missing(
        "status", "runs/x", std::make_error_code(std::errc::no_such_file_or_directory));
    EXPECT_EQ(gradtile::message_of(missing), "runs/x: No such file or directory");
}

TEST(Message, IsOneLineOnStderr) {
    testing::internal::CaptureStderr();
    print_message("runs/\x1b[31m\nx: no such file");
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "gradtile: runs/\\u001b[31m\\nx: no such file\n");
}

TEST(ParseDouble, EqualsFromChars) {
    for (const std::string text : {"0",     "-0",        "1.5",   ".5",       "5.",     "1e3",
                                   "1E-3x", "-2.25h",    "0x1p3", "-0X2",     "1e",     "1e+",
                                   "inf",   "-Infinity", "nan",   "4.9e-324", "1e-310", "1e-400",
                                   "1e400", "-1e400",    "",      "-",        " 1",     "+1",
                                   ".",     "abc",       "--1",   "1,5",      "3m5s",   "9007199254740993"}) {
        double expected = 7.0, value = 7.0;
        const auto right = std::from_chars(text.data(), text.data() + text.size(), expected);
        const auto parsed = parse_double(text.data(), text.data() + text.size(), value);
        EXPECT_EQ(parsed.ec, right.ec) << text;
        EXPECT_EQ(parsed.ptr, right.ptr) << text;
        EXPECT_EQ(std::bit_cast<std::uint64_t>(value), std::bit_cast<std::uint64_t>(expected)) << text;
    }
    const std::string_view part = std::string_view("12345").substr(0, 2);
    double value = 0.0;
    parse_double(part.data(), part.data() + part.size(), value);
    EXPECT_EQ(value, 12.0);
}

}  // namespace
}  // namespace gradtile
