#include <gradtile/core/json_value.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace gradtile {
namespace {

TEST(JsonValue, WritesWhatItIsGiven) {
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

TEST(JsonValue, TextThatIsNotJsonIsNoValue) {
    EXPECT_FALSE(JsonValue::parse("{\"a\":"));
    EXPECT_THROW(parse_json("{\"a\":"), nlohmann::json::parse_error);
}

}  // namespace
}  // namespace gradtile
