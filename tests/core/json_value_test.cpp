#include <gradtile/core/text/json_value.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_reader.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;

TEST(JsonValue, WritesTheGivenValues) {
    JsonValue value = JsonValue::object({{"yes", true},
                                         {"small", -3},
                                         {"large", std::uint64_t{1} << 63},
                                         {"real", 0.5},
                                         {"text", "a\"b"},
                                         {"list", std::vector<int>{1, 2}},
                                         {"inner", JsonValue::object({{"none", nullptr}})}});
    value.set("small", std::string("replaced"));
    EXPECT_EQ(value.dump(), R"({"inner":{"none":null},"large":9223372036854775808,"list":[1,2],"real":0.5,)"
                            R"("small":"replaced","text":"a\"b","yes":true})");
    EXPECT_EQ(parse_json(value.dump(), "test"), value);
    value.erase("inner");
    value.erase("no such member");
    EXPECT_EQ(value.size(), 6u);
    EXPECT_FALSE(value.contains("inner"));
    JsonValue list;
    list.push_back(1);
    list.push_back(JsonValue::array());
    EXPECT_EQ(list.dump(), "[1,[]]");
}

TEST(JsonValue, WrongTypesAndMissingMembersAreNamed) {
    const JsonValue value = parse_json(R"({"number": 1.5, "text": "x", "list": [7], "large": 300})", "test");
    EXPECT_EQ(message_of([&] { value["nothing"]; }), "has no member 'nothing'");
    EXPECT_EQ(message_of([&] { value["list"]["member"]; }),
              "[...] is an array; expected an object with a member 'member'");
    EXPECT_EQ(message_of([&] { value["list"][1]; }), "an array of 1 elements has no element 1");
    EXPECT_EQ(message_of([&] { value["text"].number(); }), "\"x\" is a string; expected a number");
    EXPECT_EQ(message_of([&] { value["number"].get<int>(); }),
              "1.5 is a number; expected an integer from -2147483648 to 2147483647");
    EXPECT_EQ(message_of([&] { value["large"].get<std::int8_t>(); }),
              "300 is a number; expected an integer from -128 to 127");
    EXPECT_EQ(message_of([&] { value["number"].text(); }), "1.5 is a number; expected a string");
    EXPECT_EQ(message_of([&] { value["number"].items(); }), "1.5 is a number; expected an object");
    EXPECT_EQ(value["list"].get<std::vector<int>>(), std::vector<int>{7});
    EXPECT_TRUE(value["large"].fits<std::uint16_t>());
    EXPECT_FALSE(value["large"].fits<std::uint8_t>());
}

TEST(JsonValue, KeepsNumbersToTheLastBit) {
    const std::string text = "[9223372036854775807,-9223372036854775808,18446744073709551615,5e-324,0.1]";
    EXPECT_EQ(parse_json(text, "test").dump(), text);
    // An integer that does not fit 64 bits becomes a real number, which integer settings refuse.
    EXPECT_FALSE(parse_json("18446744073709551616", "test").is_number_integer());
    EXPECT_FALSE(parse_json("-9223372036854775809", "test").is_number_integer());
    EXPECT_EQ(JsonValue(std::nan("")).dump(), "null");
}

TEST(JsonValue, NumbersAreEqualIfTheirValuesAre) {
    EXPECT_EQ(JsonValue(1), JsonValue(1.0));
    EXPECT_EQ(JsonValue(std::int64_t{5}), JsonValue(std::uint64_t{5}));
    EXPECT_NE(JsonValue(-1), JsonValue(~std::uint64_t{0}));
    EXPECT_NE(JsonValue(1), JsonValue(true));
    EXPECT_NE(JsonValue(0), JsonValue());
    EXPECT_NE(JsonValue::array(), JsonValue::object());
    EXPECT_EQ(parse_json(R"({"a":[1,{"b":null}],"c":"x"})", "test"),
              parse_json(R"({"c":"x","a":[1.0,{"b":null}]})", "test"));
}

TEST(JsonValue, NamesATextThatIsNotUtf8) {
    const auto refusal = [](const JsonValue& value) { return message_of([&] { value.dump(); }); };
    EXPECT_EQ(refusal(JsonValue::object({{"a", 1}, {"list", std::vector<std::string>{"good", "\xff"}}})),
              "list.1: a text that is not UTF-8 cannot be written as JSON");
    EXPECT_EQ(refusal(JsonValue::object({{"\xff", 1}})),
              "?: a text that is not UTF-8 cannot be written as JSON");
    EXPECT_EQ(refusal("\xff"), "a text that is not UTF-8 cannot be written as JSON");
}

TEST(JsonValue, ExcerptsAreShort) {
    EXPECT_EQ(json_excerpt(3), "3");
    EXPECT_EQ(json_excerpt("a\nb"), "\"a?b\"");
    EXPECT_EQ(json_excerpt(JsonValue::object({{"a", 1}})), "{...}");
    EXPECT_EQ(json_excerpt(std::string(1 << 20, 'x')).size(), 65u);
}

}  // namespace
}  // namespace gradtile
