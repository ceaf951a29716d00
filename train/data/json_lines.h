#pragma once
/// JSON Lines: one JSON value per line.
#include <functional>
#include <string>
#include <string_view>

#include <gradtile/core/text/json_value.h>

namespace gradtile {

/// Calls visit with each line's value and "SOURCE: line N", for error messages. Skips empty lines and a byte
/// order mark. Throws Error "SOURCE: line N: REASON" as
/// parse_json does.
void for_each_json_line(std::string_view text, std::string_view source,
                        const std::function<void(const JsonValue& value, const std::string& where)>& visit);

}  // namespace gradtile
