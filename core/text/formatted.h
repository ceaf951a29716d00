#pragma once
/// Formats numbers as text.
#include <cstdint>
#include <cstdio>
#include <string>

namespace gradtile {

/// printf into a string. The result is truncated to 255 characters.
template <class... Args>
std::string formatted(const char* format, Args... args) {
    char text[256];
    std::snprintf(text, sizeof text, format, args...);
    return text;
}

/// Returns a number with separators: "1,115,394".
inline std::string grouped(std::int64_t number) {
    const std::string digits = std::to_string(number);
    std::string text;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && digits[i - 1] != '-' && (digits.size() - i) % 3 == 0) text += ',';
        text += digits[i];
    }
    return text;
}

}  // namespace gradtile
