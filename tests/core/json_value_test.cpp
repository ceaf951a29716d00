#include <gradtile/core/text/json_value.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

TEST(JsonValue, WritesTheGivenValues) {
    JsonValue value = JsonValue::object({{"yes", true},
                                         {"small", -3},
                                         {"large", std::uint64_t{1} << 63},
                                         {"real", 0.5},
                                         {"text", "a\"b"},
                                         {"list", std::vector<int>{1, 2}},
                                         {"inner", JsonValue::object({{"none", JsonValue()}})}});
    value.set("small", std::string("replaced"));
    EXPECT_EQ(value.dump(), R"({"inner":{"none":null},"large":9223372036854775808,"list":[1,2],"real":0.5,)"
                            R"("small":"replaced","text":"a\"b","yes":true})");
    EXPECT_EQ(value.names(),
              (std::vector<std::string>{"inner", "large", "list", "real", "small", "text", "yes"}));
    EXPECT_EQ(*JsonValue::parse(value.dump()), value);
}

std::string refusal_of(const std::string& text) {
    try {
        parse_json(text);
    } catch (const Error& error) {
        EXPECT_FALSE(JsonValue::parse(text));
        return error.what();
    }
    return "";
}

/// A text of `levels` arrays or objects, nested in each other.
std::string nested(std::size_t levels, const std::string& begin, const std::string& end) {
    std::string text;
    for (std::size_t i = 0; i < levels; ++i) text += begin;
    text += "1";
    for (std::size_t i = 0; i < levels; ++i) text += end;
    return text;
}

TEST(JsonValue, TextThatIsNotJsonIsNoValue) {
    EXPECT_EQ(
        refusal_of("{\"a\":"),
        "line 1, column 6: syntax error while parsing value - unexpected end of input; expected '[', '{', or "
        "a literal");
    EXPECT_EQ(
        refusal_of("{\n  \"a\" 1}"),
        "line 2, column 7: syntax error while parsing object separator - unexpected number literal; expected "
        "':'");
    EXPECT_NE(refusal_of(""), "");
    EXPECT_NE(refusal_of("{} {}"), "");
    EXPECT_NE(refusal_of("[NaN]"), "");
}

/// nlohmann::json reads any depth, but overflows the stack when it destroys, copies or prints the value.
TEST(JsonValue, RefusesDeepNesting) {
    for (const auto& [begin, end] : {std::pair{"[", "]"}, {"{\"a\":", "}"}, {"[{\"a\":", "}]"}}) {
        const std::size_t levels_of_one = std::string_view(begin)[0] == '[' && begin[1] == '{' ? 2 : 1;
        const std::size_t allowed = max_json_depth / levels_of_one;
        const std::string text = nested(allowed, begin, end);
        EXPECT_EQ(JsonValue(parse_json(text)).dump(), text);
        for (const std::size_t levels : {allowed + 1, std::size_t{3'000'000}}) {
            EXPECT_EQ(refusal_of(nested(levels, begin, end)), "nested more than 64 levels deep");
            EXPECT_EQ(refusal_of(nested(levels, begin, "")), "nested more than 64 levels deep");
        }
    }
}

TEST(JsonValue, ReadsWideTextsInLinearTime) {
    std::string text = "[{}";
    // Takes a second if each member is compared with all members before it.
    for (int i = 0; i < 300'000; ++i) text += ",{}";
    EXPECT_EQ(parse_json(text + "]").size(), 300'001u);
}

TEST(JsonValue, RefusesADuplicateMember) {
    EXPECT_EQ(refusal_of(R"({"steps": 1, "lr": 2, "steps": 3})"), "'steps' occurs twice in one object");
    EXPECT_EQ(refusal_of(R"([{"a": {"b": 1, "b": 1}}])"), "'b' occurs twice in one object");
    EXPECT_EQ(refusal_of(R"([{"a": 1}, {"a": {"a": 1}}])"), "");
}

TEST(JsonValue, RefusalsAreOneShortLine) {
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
        EXPECT_THAT(refusal, testing::Not(testing::HasSubstr("json.exception")));
    }
    EXPECT_THAT(refusal_of("[1e999]"), testing::HasSubstr("number overflow parsing '1e999'"));
}

TEST(JsonValue, KeepsNumbersToTheLastBit) {
    const std::string text = "[9223372036854775807,-9223372036854775808,18446744073709551615,5e-324,0.1]";
    EXPECT_EQ(JsonValue(parse_json(text)).dump(), text);
    // An integer that does not fit 64 bits becomes a real number, which settings of integer type refuse.
    EXPECT_FALSE(parse_json("18446744073709551616").is_number_integer());
    EXPECT_FALSE(parse_json("-9223372036854775809").is_number_integer());
    EXPECT_EQ(JsonValue(std::nan("")).dump(), "null");
}

TEST(JsonValue, NamesATextThatIsNotUtf8) {
    const auto refusal = [](const nlohmann::json& value) {
        try {
            return json_text(value);
        } catch (const Error& error) {
            return std::string(error.what());
        }
    };
    EXPECT_EQ(refusal({{"a", 1}, {"list", {"good", "\xff"}}}),
              "list.1: a text that is not UTF-8 cannot be written as JSON");
    EXPECT_EQ(refusal({{"\xff", 1}}), "?: a text that is not UTF-8 cannot be written as JSON");
    EXPECT_EQ(refusal("\xff"), "a text that is not UTF-8 cannot be written as JSON");
}

TEST(JsonValue, ExcerptsAreShort) {
    EXPECT_EQ(json_excerpt(3), "3");
    EXPECT_EQ(json_excerpt("a\nb"), "\"a?b\"");
    EXPECT_EQ(json_excerpt({{"a", 1}}), "{...}");
    EXPECT_EQ(json_excerpt(std::string(1 << 20, 'x')).size(), 65u);
}

}  // namespace
}  // namespace gradtile
