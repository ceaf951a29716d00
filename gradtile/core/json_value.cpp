#include <gradtile/core/json_value.h>

#include <nlohmann/json.hpp>

namespace gradtile {

using nlohmann::json;

JsonValue::JsonValue() : value_(std::make_unique<json>()) {}
JsonValue::JsonValue(json value) : value_(std::make_unique<json>(std::move(value))) {}
JsonValue::JsonValue(bool value) : value_(std::make_unique<json>(value)) {}
JsonValue::JsonValue(double value) : value_(std::make_unique<json>(value)) {}
JsonValue::JsonValue(std::int64_t value) : value_(std::make_unique<json>(value)) {}
JsonValue::JsonValue(std::uint64_t value) : value_(std::make_unique<json>(value)) {}
JsonValue::JsonValue(std::string_view value) : value_(std::make_unique<json>(value)) {}
JsonValue::JsonValue(const std::vector<JsonValue>& values) : value_(std::make_unique<json>(json::array())) {
    for (const JsonValue& value : values) value_->push_back(*value);
}
JsonValue JsonValue::object(std::initializer_list<Member> members) {
    JsonValue value(json::object());
    for (const Member& member : members) value.set(member.name, member.value);
    return value;
}
void JsonValue::set(std::string_view name, JsonValue value) {
    (*value_)[std::string(name)] = std::move(*value);
}
std::vector<std::string> JsonValue::names() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : value_->items()) names.push_back(name);
    return names;
}

JsonValue::JsonValue(const JsonValue& other) : value_(std::make_unique<json>(*other)) {}
JsonValue::JsonValue(JsonValue&& other) noexcept = default;
JsonValue& JsonValue::operator=(JsonValue other) noexcept {
    value_ = std::move(other.value_);
    return *this;
}
JsonValue::~JsonValue() = default;

std::optional<JsonValue> JsonValue::parse(std::string_view text) {
    json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) return std::nullopt;
    return value;
}

std::string JsonValue::dump(int indent) const {
    return json_text(*value_, indent);
}

std::string json_text(const json& value, int indent) {
    return value.dump(indent);
}

json parse_json(std::string_view text) {
    return json::parse(text);
}

bool operator==(const JsonValue& a, const JsonValue& b) {
    return *a == *b;
}

}  // namespace gradtile
