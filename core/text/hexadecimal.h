#pragma once
/// Bytes as hexadecimal digits.
#include <cstddef>
#include <span>
#include <string>

namespace gradtile {

/// Returns two lower-case digits for each byte.
inline std::string hexadecimal(std::span<const std::byte> bytes) {
    constexpr const char* digits = "0123456789abcdef";
    std::string text;
    for (const std::byte byte : bytes) {
        const auto value = std::to_integer<unsigned>(byte);
        text += {digits[value / 16], digits[value % 16]};
    }
    return text;
}

}  // namespace gradtile
