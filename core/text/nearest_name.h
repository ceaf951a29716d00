#pragma once
/// "Did you mean": the known name closest to a mistyped one.
#include <span>
#include <string>
#include <string_view>

namespace gradtile {

/// Returns the known name with the smallest edit distance (insert, delete, replace, swap neighbours); empty
/// if none is near. A name is near if it differs in at most a third of its characters (in one if it is
/// short), or if one name is a prefix of the other.
std::string nearest_name(std::string_view typed, std::span<const std::string> known);

/// Returns "; did you mean BEFORE name AFTER?", or an empty text if no known name is near.
std::string did_you_mean(std::string_view typed, std::span<const std::string> known,
                         std::string_view before = "'", std::string_view after = "'");

}  // namespace gradtile
