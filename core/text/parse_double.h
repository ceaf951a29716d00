#pragma once
/// std::from_chars for double, which libc++ has only since its version 20.
#include <charconv>

namespace gradtile {

/// Parses the longest prefix of [begin, end) that is a decimal number, "inf" or "nan", as std::from_chars
/// does: without spaces or a plus sign before it, and with a point in every locale.
std::from_chars_result parse_double(const char* begin, const char* end, double& value);

}  // namespace gradtile
