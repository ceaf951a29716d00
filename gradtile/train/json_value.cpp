#include <gradtile/train/json_value.h>

#include <nlohmann/json.hpp>

namespace gradtile {

using nlohmann::json;

JsonValue::JsonValue() : value_(std::make_unique<json>()) {}
JsonValue::JsonValue(json value) : value_(std::make_unique<json>(std::move(value))) {}
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
    return value_->dump(indent);
}

bool operator==(const JsonValue& a, const JsonValue& b) {
    return *a == *b;
}

}  // namespace gradtile
