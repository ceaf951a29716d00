#pragma once
/// Optional values as JSON, where an absent value is null.

#include <optional>
#include <string_view>

#include <gradtile/core/text/json_value.h>

namespace gradtile {

/// Returns object[key]; empty when it is absent or null.
template <class T>
std::optional<T> optional_of(const JsonValue& object, std::string_view key) {
    const JsonValue* const value = object.find_value(key);
    return value ? std::optional(value->get<T>()) : std::nullopt;
}

template <class T>
JsonValue json_of(const std::optional<T>& value) {
    return value ? JsonValue(*value) : JsonValue();
}

}  // namespace gradtile
