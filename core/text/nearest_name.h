#pragma once
/// "Did you mean": the known name closest to what was typed.
#include <span>
#include <string>
#include <string_view>

namespace gradtile {

/// The known name with the smallest edit distance (insert, delete, replace, swap of neighbours); empty when
/// none is near. Near is a name that differs in at most a third of its characters (in one, if it is short),
/// or of which the other is the beginning.
std::string nearest_name(std::string_view typed, std::span<const std::string> known);

/// "; did you mean BEFORE name AFTER?", or nothing when no known name is near.
std::string did_you_mean(std::string_view typed, std::span<const std::string> known,
                         std::string_view before = "'", std::string_view after = "'");

}  // namespace gradtile
