#pragma once
/// JSON Lines: one JSON value per line.
#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace gradtile {

/// Calls visit with each line's value and "SOURCE: line N", for error messages. Skips empty lines and a byte
/// order mark. Throws Error "SOURCE: line N: not JSON: ...".
void for_each_json_line(
    std::string_view text, std::string_view source,
    const std::function<void(const nlohmann::json& value, const std::string& where)>& visit);

}  // namespace gradtile
