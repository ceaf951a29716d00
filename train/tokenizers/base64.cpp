#include <gradtile/train/tokenizers/internal/base64.h>

#include <array>
#include <cstdint>

namespace gradtile {
namespace {

constexpr std::string_view base64_digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<std::int8_t, 256> base64_values() {
    std::array<std::int8_t, 256> values{};
    values.fill(-1);
    for (std::size_t i = 0; i < base64_digits.size(); ++i)
        values[static_cast<unsigned char>(base64_digits[i])] = static_cast<std::int8_t>(i);
    return values;
}

}  // namespace

std::string base64_of_bytes(std::string_view bytes) {
    std::string text;
    text.reserve((bytes.size() + 2) / 3 * 4);
    unsigned bits = 0;
    int held = 0;
    for (const char byte : bytes) {
        bits = bits << 8 | static_cast<unsigned char>(byte);
        for (held += 8; held >= 6; held -= 6) text += base64_digits[bits >> (held - 6) & 63];
    }
    if (held > 0) text += base64_digits[bits << (6 - held) & 63];
    text.resize((text.size() + 3) / 4 * 4, '=');
    return text;
}

std::optional<std::string> bytes_of_base64(std::string_view text) {
    static constexpr std::array values = base64_values();
    if (text.empty() || text.size() % 4 != 0) return std::nullopt;
    const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
    text.remove_suffix(padding);
    std::string bytes;
    unsigned bits = 0;
    int held = 0;
    for (const char c : text) {
        const std::int8_t value = values[static_cast<unsigned char>(c)];
        if (value < 0) return std::nullopt;
        bits = bits << 6 | static_cast<unsigned>(value);
        held += 6;
        if (held < 8) continue;
        held -= 8;
        bytes += static_cast<char>(bits >> held & 0xFF);
    }
    return bytes;
}

}  // namespace gradtile
