#pragma once
/// "Did you mean": the known name closest to what was typed.
#include <span>
#include <string>
#include <string_view>

namespace gradtile {

/// The known name with the smallest edit distance (insert, delete, replace, swap of neighbours); empty when
/// none are known.
std::string nearest_name(std::string_view typed, std::span<const std::string> known);

}  // namespace gradtile
