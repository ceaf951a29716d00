#pragma once
/// A JSON value to carry about and to store. Who looks inside includes <nlohmann/json.hpp>, which takes
/// seconds to compile; who only passes it on does not. Parsing and printing take seconds more in each source
/// that instantiates them, and so are compiled once, here.
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace gradtile {

class JsonValue {
  public:
    struct Member;

    JsonValue();  ///< null
    // NOLINTBEGIN(google-explicit-constructor): each is the same value.
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
    /// An array.
    template <class T>
    JsonValue(const std::vector<T>& values)
        : JsonValue(std::vector<JsonValue>(values.begin(), values.end())) {}
    JsonValue(const std::vector<JsonValue>& values);
    // NOLINTEND(google-explicit-constructor)
    static JsonValue object(std::initializer_list<Member> members = {});
    /// Of an object.
    void set(std::string_view name, JsonValue value);
    std::vector<std::string> names() const;

    JsonValue(const JsonValue& other);
    JsonValue(JsonValue&& other) noexcept;
    JsonValue& operator=(JsonValue other) noexcept;
    ~JsonValue();

    /// Empty when the text is not JSON.
    static std::optional<JsonValue> parse(std::string_view text);
    /// On one line, or indented by so many spaces.
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

/// value.dump(indent).
std::string json_text(const nlohmann::json& value, int indent = -1);
/// Throws nlohmann::json::parse_error.
nlohmann::json parse_json(std::string_view text);

}  // namespace gradtile
