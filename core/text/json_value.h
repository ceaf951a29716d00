#pragma once
/// A JSON value to store and pass on without <nlohmann/json.hpp>, which takes seconds to compile. Only
/// sources that look inside the value include that header. Parsing and printing would add seconds to each
/// source that instantiates them, so they are compiled once, in json_value.cpp.
///
/// Every JSON text enters the program through parse_json or JsonValue::parse. They refuse a text that is
/// nested deeper than max_json_depth, names a member twice, or is not UTF-8.
#include <concepts>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace gradtile {

/// The largest depth of nested arrays and objects. gradtile itself writes texts of depth 6 or less.
constexpr int max_json_depth = 64;

class JsonValue {
  public:
    struct Member;

    JsonValue();  ///< null
    // NOLINTBEGIN(google-explicit-constructor): the conversions keep the value.
    JsonValue(nlohmann::json value);
    JsonValue(bool value);
    JsonValue(double value);
    JsonValue(std::int64_t value);
    JsonValue(std::uint64_t value);
    template <std::integral Integer>
    JsonValue(Integer value)
        : JsonValue(static_cast<std::conditional_t<std::is_signed_v<Integer>, std::int64_t, std::uint64_t>>(
              value)) {}
    JsonValue(std::string_view value);
    JsonValue(const std::string& value) : JsonValue(std::string_view(value)) {}
    JsonValue(const char* value) : JsonValue(std::string_view(value)) {}
    /// Makes an array.
    template <class T>
    JsonValue(const std::vector<T>& values)
        : JsonValue(std::vector<JsonValue>(values.begin(), values.end())) {}
    JsonValue(const std::vector<JsonValue>& values);
    // NOLINTEND(google-explicit-constructor)
    static JsonValue object(std::initializer_list<Member> members = {});
    /// Sets a member of an object.
    void set(std::string_view name, JsonValue value);
    std::vector<std::string> names() const;

    JsonValue(const JsonValue& other);
    JsonValue(JsonValue&& other) noexcept;
    JsonValue& operator=(JsonValue other) noexcept;
    ~JsonValue();

    /// Returns nullopt when parse_json refuses the text.
    static std::optional<JsonValue> parse(std::string_view text);
    /// Returns json_text(**this, indent).
    std::string dump(int indent = -1) const;

    nlohmann::json& operator*() { return *value_; }
    const nlohmann::json& operator*() const { return *value_; }
    const nlohmann::json* operator->() const { return value_.get(); }
    friend bool operator==(const JsonValue& a, const JsonValue& b);

  private:
    std::unique_ptr<nlohmann::json> value_;
};

struct JsonValue::Member {
    std::string_view name;
    JsonValue value;
};

/// Prints a value on one line, or with `indent` spaces per level. Throws Error with the member's name when a
/// text in the value is not UTF-8 (file names may be any bytes). A number that is not finite becomes null.
std::string json_text(const nlohmann::json& value, int indent = -1);
/// Describes a value in an error message: a number or text (shortened if it is long), "[...]" or "{...}".
std::string json_excerpt(const nlohmann::json& value);
/// Parses a text. Throws Error with one line of at most 200 characters: "line 1, column 5: syntax error while
/// parsing value - unexpected end of input", "nested more than 64 levels deep", "'steps' occurs twice in one
/// object". An integer that does not fit 64 bits becomes a floating-point number.
nlohmann::json parse_json(std::string_view text);
/// Returns the text of an nlohmann::json::exception as one short line, without the library's prefix.
std::string reason_of(const std::exception& error);

}  // namespace gradtile
