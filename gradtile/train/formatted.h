#pragma once
/// Numbers in text as printf writes them.
#include <cstdio>
#include <string>

namespace gradtile {

/// At most 255 characters.
template <class... Args>
std::string formatted(const char* format, Args... args) {
    char text[256];
    std::snprintf(text, sizeof text, format, args...);
    return text;
}

}  // namespace gradtile
