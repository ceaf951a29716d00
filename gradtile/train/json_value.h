#pragma once
/// A JSON value to carry about and to store. Who looks inside includes <nlohmann/json.hpp>, which takes
/// seconds to compile; who only passes it on does not.
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace gradtile {

class JsonValue {
  public:
    JsonValue();                      ///< null
    JsonValue(nlohmann::json value);  // NOLINT(google-explicit-constructor): it is the same value
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

}  // namespace gradtile
