#include <gradtile/core/text/json_reader.h>

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_writer.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::HasSubstr;

/// The reason for which parse_json and a reader that ignores all values refuse the text; empty: both read it.
std::string refusal_of(const std::string& text) {
    const auto reason = [](const std::string& message) {
        const std::string prefix = "f.json: ";
        EXPECT_THAT(message, testing::StartsWith(prefix));
        return message.substr(prefix.size());
    };
    try {
        parse_json(text, "f.json");
    } catch (const Error& error) {
        EXPECT_TRUE(parse_json_or_null(text).is_null());
        return reason(error.what());
    }
    return "";
}

/// A text with `levels` nested arrays or objects.
std::string nested(std::size_t levels, const std::string& begin, const std::string& end) {
    std::string text;
    for (std::size_t i = 0; i < levels; ++i) text += begin;
    text += "1";
    for (std::size_t i = 0; i < levels; ++i) text += end;
    return text;
}

/// Repeats an element `count` times, with commas between.
std::string repeated(const std::string& element, std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text += (i > 0 ? "," : "") + element;
    return text;
}

TEST(JsonReader, TextThatIsNotJsonIsRefused) {
    EXPECT_EQ(refusal_of("{\"a\":"),
              "not JSON: column 6: syntax error while parsing value - unexpected end of input; "
              "expected '[', '{', or a literal");
    EXPECT_EQ(refusal_of("{\n  \"a\" 1}"),
              "not JSON: line 2, column 7: syntax error while parsing object separator - unexpected number "
              "literal; expected ':'");
    EXPECT_NE(refusal_of(""), "");
    EXPECT_NE(refusal_of("{} {}"), "");
    EXPECT_NE(refusal_of("[NaN]"), "");
}

TEST(JsonReader, ANulEndsNoText) {
    const std::string nul(1, '\0');
    for (const std::string& value : {std::string("{\"a\":1}"), "[\"" + std::string(500, 'x') + "\"]"})
        for (const std::string& rest : {std::string(), std::string(" "), std::string("{\"b\":2}")})
            EXPECT_EQ(refusal_of(value + nul + rest), concat("not JSON: at byte ", value.size(),
                                                             ": a NUL outside of strings; expected the end"));
    EXPECT_NE(refusal_of("[1," + nul + "2]"), "");
    EXPECT_NE(refusal_of("[\"" + nul + "\"]"), "");
    EXPECT_EQ(parse_json("[\"\\u0000\"]", "f.json")[0].text(), nul);
}

TEST(JsonReader, RefusesDeepNesting) {
    for (const auto& [begin, end] : {std::pair{"[", "]"}, {"{\"a\":", "}"}, {"[{\"a\":", "}]"}}) {
        const std::size_t levels_of_one = std::string_view(begin)[0] == '[' && begin[1] == '{' ? 2 : 1;
        const std::size_t allowed = max_json_depth / levels_of_one;
        const std::string text = nested(allowed, begin, end);
        EXPECT_EQ(parse_json(text, "f.json").dump(), text);
        for (const std::size_t levels : {allowed + 1, std::size_t{3'000'000}}) {
            EXPECT_EQ(refusal_of(nested(levels, begin, end)), "nested more than 64 levels deep");
            EXPECT_EQ(refusal_of(nested(levels, begin, "")), "nested more than 64 levels deep");
        }
    }
}

TEST(JsonReader, RefusesManyValuesAndLongOnes) {
    for (const char* const element : {"1", "{}", "[]", "\"x\""}) {
        // The array is a value, too.
        const std::string most = "[" + repeated(element, max_json_values - 1);
        EXPECT_EQ(parse_json(most + "]", "f.json").size(), max_json_values - 1);
        EXPECT_EQ(refusal_of(most + "," + element + "]"), "more than 32768 values");
        EXPECT_EQ(refusal_of(most + "," + element), "more than 32768 values");  // before the end is read
    }
    const std::string text(max_json_string_bytes, 'x'), digits(max_json_number_bytes, '1');
    EXPECT_EQ(parse_json("[\"" + text + "\"]", "f.json")[0].text().size(), text.size());
    EXPECT_EQ(refusal_of("[\"" + text + "x\"]"), "at byte 2: a string of more than 67108864 bytes");
    EXPECT_EQ(refusal_of("{\"a\": 1, \"" + text + "x"), "at byte 10: a string of more than 67108864 bytes");
    EXPECT_EQ(refusal_of("[0." + digits.substr(2) + "]"), "");
    EXPECT_EQ(refusal_of("[0." + digits.substr(1) + "]"),
              "at byte 1: a number or word of more than 1024 bytes");
    EXPECT_EQ(refusal_of("[1e" + std::string(1 << 20, '9')),
              "at byte 1: a number or word of more than 1024 bytes");
    // A quote that is escaped does not end the string.
    EXPECT_EQ(refusal_of("[\"" + repeated("\\\"", 20) + "\"]"), "");
    for (std::size_t pairs = 0; pairs < 5; ++pairs) {
        std::string backslashes;  // an even number: the quotation mark after them ends the string
        for (std::size_t i = 0; i < pairs; ++i) backslashes += "\\\\";
        const std::string long_text = "\"" + text + "x\"", escaped = backslashes + "\\\"";
        EXPECT_EQ(parse_json("[\"" + escaped + "\",1]", "f.json")[1], JsonValue(1));
        EXPECT_EQ(refusal_of("[\"" + backslashes + "\"," + long_text + "]"),
                  concat("at byte ", 5 + 2 * pairs, ": a string of more than 67108864 bytes"));
        EXPECT_EQ(refusal_of("[\"" + escaped + "\"," + long_text + "]"),
                  concat("at byte ", 7 + 2 * pairs, ": a string of more than 67108864 bytes"));
    }
}

/// A string between quotation marks, of parts that are valid in strings, or not.
std::string any_string(std::mt19937& random, bool is_valid, std::size_t parts) {
    using namespace std::string_literals;
    static const std::vector<std::string> valid{"plain text ",  "",
                                                "\\n",          "\\\"",
                                                "\\\\",         "\\/",
                                                "\\b\\f\\r\\t", "\\u0000",
                                                "\\u00e9",      "\\u20AC",
                                                "\\uffff",      "\x7F",
                                                "\u00e9",       "\u4e2d\u6587",
                                                "\U0001f600",   "\\ud83d\\ude00"};
    static const std::vector<std::string> invalid{
        "\\ud83d", "\\ude00", "\\ud83d\\u0041", "\\u12",        "\\u 123", "\\u+123",
        "\\u0x1",  "\\x",     "\\U0041",        "\x1F",         "\n",      "\0"s,
        "\xC3",    "\xA9",    "\xC0\x80",       "\xED\xA0\x80", "\xFF",    "\xF4\x90\x80\x80"};
    const auto any_of = [&](const std::vector<std::string>& choices) {
        return choices[random() % choices.size()];
    };
    std::string text = "\"";
    const std::size_t wrong = is_valid ? parts : random() % parts;
    for (std::size_t i = 0; i < parts; ++i) text += any_of(i == wrong ? invalid : valid);
    return text + "\"";
}

/// Long strings are decoded here, short ones by the library: every text has the library's value or is
/// refused.
TEST(JsonReader, StringsHaveTheValuesThatTheLibraryGivesThem) {
    std::mt19937 random(1);
    int refused = 0;
    for (int round = 0; round < 4000; ++round) {
        const bool is_valid = round % 2 == 0;
        const std::size_t wrong = random() % 6;
        std::string text = "{";
        for (std::size_t member = 0; member < 3; ++member) {
            // a name of its own for each member, long or short, and a long, short or empty value
            const auto part = [&](std::size_t index, std::size_t parts) {
                return any_string(random, is_valid || index != wrong, parts);
            };
            text +=
                concat(member > 0 ? "," : "", part(2 * member, 1 + random() % 60).insert(1, 1 + member, 'n'),
                       ":", part(2 * member + 1, 1 + random() % 200));
        }
        text += "}";
        const auto expected = nlohmann::json::parse(text, nullptr, false);
        EXPECT_EQ(expected.is_discarded(), !is_valid);
        const JsonValue value = parse_json_or_null(text);
        if (expected.is_discarded()) {
            ++refused;
            EXPECT_TRUE(value.is_null()) << text;
        } else {
            EXPECT_EQ(value.dump(), expected.dump());
        }
    }
    EXPECT_EQ(refused, 2000);
}

TEST(JsonReader, ErrorsAfterALongStringHaveTheirPlaceInTheText) {
    const std::string name(1000, 'n'), value(500, 'v');
    EXPECT_THAT(refusal_of(concat("{\"", name, "\": \"", value, "\"\n, 1}")),
                HasSubstr("not JSON: line 2, column 3: "));
    EXPECT_THAT(refusal_of(concat("[\"", value, "\" 1]")), HasSubstr("not JSON: column 505: "));
    EXPECT_THAT(refusal_of(concat("[\"", value, "\\q\"]")), HasSubstr("not JSON: column 504: "));
    EXPECT_THAT(refusal_of(concat("[\"", value)), HasSubstr("not JSON: column 503: "));
}

TEST(JsonReader, RefusesADuplicateMember) {
    EXPECT_EQ(refusal_of(R"({"steps": 1, "lr": 2, "steps": 3})"), "'steps' occurs twice in one object");
    EXPECT_EQ(refusal_of(R"([{"a": {"b": 1, "b": 1}}])"), "'b' occurs twice in one object");
    EXPECT_EQ(refusal_of(R"([{"a": 1}, {"a": {"a": 1}}])"), "");
}

TEST(JsonReader, RefusalsAreOneShortLine) {
    const std::string huge(1 << 20, 'x');
    const std::string texts[] = {huge,
                                 "\"" + huge,
                                 "{\"" + huge + "\": 1, \"" + huge + "\": 2}",
                                 "1e" + std::string(1 << 20, '9'),
                                 "[1e999]",
                                 "\"\n" + huge + "\"",
                                 "[\"\xff\xfe" + huge + "\"]",
                                 std::string("\0\0\0", 3) + huge,
                                 "\"\\ud800\""};
    for (const std::string& text : texts) {
        const std::string refusal = refusal_of(text);
        EXPECT_NE(refusal, "");
        EXPECT_LE(refusal.size(), 200u) << refusal;
        EXPECT_EQ(refusal.find_first_of("\n\x1b"), std::string::npos) << refusal;
        EXPECT_THAT(refusal, testing::Not(HasSubstr("json.exception")));
    }
    EXPECT_THAT(refusal_of("[1e999]"), HasSubstr("number overflow parsing '1e999'"));
}

TEST(JsonReader, RoutedMembersAreEmptyInTheValue) {
    std::string copy;
    JsonWriter writer(copy);
    std::vector<std::string> members, elements;
    JsonElements vocab(JsonElements::Of::object, [&](const std::string& name, const JsonValue& value) {
        members.push_back(name + '=' + value.dump());
    });
    JsonElements merges(JsonElements::Of::array, [&](const std::string& name, const JsonValue& value) {
        elements.push_back(name + value.dump());
    });
    const std::string text = R"({"model": {"vocab": {"a": 1, "b": [2, {"c": 3}], "a": {}},
                                           "merges": ["x", ["y", "z"], [], {}], "vocab2": {"a": 1}},
                                 "vocab": {"a": 1}, "list": [{"model": {"vocab": {"a": 1}}}],
                                 "tokenizer": {"kind": "bpe", "list": [1, {"a": "\u00e9"}]}})";
    const JsonValue value =
        parse_json(text, "f.json",
                   {{{"model", "vocab"}, vocab}, {{"model", "merges"}, merges}, {{"tokenizer"}, writer}});
    writer.finish();
    EXPECT_EQ(value.dump(), R"({"list":[{"model":{"vocab":{"a":1}}}],"model":{"merges":[],"vocab":{},)"
                            R"("vocab2":{"a":1}},"tokenizer":{},"vocab":{"a":1}})");
    EXPECT_THAT(members, testing::ElementsAre("a=1", "b=[2,{\"c\":3}]", "a={}"));
    EXPECT_THAT(elements, testing::ElementsAre("\"x\"", "[\"y\",\"z\"]", "[]", "{}"));
    EXPECT_EQ(copy, "{\"kind\":\"bpe\",\"list\":[1,{\"a\":\"\xc3\xa9\"}]}");
}

TEST(JsonReader, RoutedValuesOfAnotherTypeAreSkipped) {
    JsonElements list(JsonElements::Of::array, [](const std::string&, const JsonValue&) { FAIL(); });
    for (const char* const text : {"{\"a\":{}}", "{\"a\":7}", "{\"a\":null}", "{\"a\":\"x\"}"})
        EXPECT_EQ(parse_json(text, "f.json", {{{"a"}, list}}).dump(), text);
    EXPECT_EQ(parse_json(R"({"a": {"b": [1, {"c": 2}], "d": 3}, "e": 4})", "f.json", {{{"a"}, list}}).dump(),
              R"({"a":{},"e":4})");
    SkippedJson skipped;
    EXPECT_EQ(parse_json("[1, [2]]", "f.json", {{{}, skipped}}).dump(), "[]");
}

TEST(JsonReader, ALongListIsReadElementByElement) {
    const std::size_t count = 20 * max_json_values;
    std::size_t seen = 0;
    JsonElements list(JsonElements::Of::array, [&](const std::string&, const JsonValue& element) {
        EXPECT_EQ(element.size(), 2u);
        ++seen;
    });
    const std::string text = "{\"list\":[" + repeated("[1,2]", count) + "]}";
    EXPECT_EQ(parse_json(text, "f.json", {{{"list"}, list}}).dump(), "{\"list\":[]}");
    EXPECT_EQ(seen, count);
    EXPECT_EQ(message_of([&] {
                  parse_json("{\"list\":[[1,2],[" + repeated("1", max_json_values) + "]]}", "f.json",
                             {{{"list"}, list}});
              }),
              "f.json: more than 32768 values");
}

TEST(JsonReader, AHandlersErrorNamesTheSource) {
    JsonElements list(JsonElements::Of::array, [&](const std::string&, const JsonValue& element) {
        check(element.is_number(), "element ", element, " is not a number");
    });
    EXPECT_EQ(message_of([&] {
                  parse_json("[1, \"x\"]", "f.json", {{{}, list}});
              }),
              "f.json: element \"x\" is not a number");
}

TEST(JsonWriter, AReadTextIsPrintedAgain) {
    const std::string text =
        R"({"b":[],"a":{},"list":[1,-2,0.5,true,null,"\"\\\b\f\n\r\t\u0001/é"],"o":{"x":{}}})";
    for (const int indent : {-1, 2}) {
        std::string copy;
        JsonWriter writer(copy, indent);
        read_json(text, "f.json", writer);
        writer.finish();
        if (indent < 0) {
            EXPECT_EQ(copy, text);
        }
        EXPECT_EQ(parse_json(copy, "copy"), parse_json(text, "f.json"));
    }
    EXPECT_EQ(parse_json(R"({"a":[1,{"b":[]}],"c":{}})", "f.json").dump(2),
              "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ],\n  \"c\": {}\n}");
}

TEST(JsonWriter, ALongTextComesInPieces) {
    std::size_t largest = 0;
    std::string all;
    JsonWriter writer([&](std::string_view piece) {
        largest = std::max(largest, piece.size());
        all += piece;
    });
    const std::string word(1000, 'x');
    writer.begin_array();
    for (int i = 0; i < 1000; ++i) writer.write_text(word);
    writer.end();
    writer.finish();
    EXPECT_EQ(all, "[" + repeated('"' + word + '"', 1000) + "]");
    EXPECT_LE(largest, std::size_t{70'000});
}

}  // namespace
}  // namespace gradtile
