#pragma once
/// Optional values as JSON, where an absent value is null.

#include <optional>

#include <nlohmann/json.hpp>

namespace gradtile {

/// Returns object[key]; empty when it is absent or null.
template <class T>
std::optional<T> optional_of(const nlohmann::json& object, const char* key) {
    if (!object.contains(key) || object[key].is_null()) return std::nullopt;
    return object[key].get<T>();
}

template <class T>
nlohmann::json json_of(const std::optional<T>& value) {
    return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace gradtile
