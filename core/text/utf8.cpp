#include <gradtile/core/text/utf8.h>

#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <sstream>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

constexpr char32_t largest_code_point = 0x10FFFF;

constexpr bool is_scalar_value(char32_t c) {
    return c <= largest_code_point && !(c >= 0xD800 && c <= 0xDFFF);
}

constexpr int encoded_length(char32_t c) {
    return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
}

}  // namespace

CodePoint decode_utf8(std::string_view text, std::size_t offset) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[offset + i]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) return {lead, 1};
    const int length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || text.size() - offset < static_cast<std::size_t>(length)) return {};
    auto value = static_cast<char32_t>(lead & (0x7F >> length));
    for (int i = 1; i < length; ++i) {
        const unsigned char next = byte(static_cast<std::size_t>(i));
        if ((next & 0xC0) != 0x80) return {};
        value = value << 6 | (next & 0x3Fu);
    }
    if (!is_scalar_value(value) || encoded_length(value) != length) return {};
    return {value, length};
}

bool is_utf8(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
        const CodePoint code_point = decode_utf8(text, i);
        if (code_point.length == 0) return false;
        i += static_cast<std::size_t>(code_point.length);
    }
    return true;
}

void append_utf8(std::string& text, char32_t c) {
    if (!is_scalar_value(c)) throw Error(concat("utf-8: ", code_point_name(c), " is not a character"));
    const int length = encoded_length(c);
    if (length == 1) {
        text += static_cast<char>(c);
        return;
    }
    const unsigned lead_marks = 0xF00u >> length;  // 110xxxxx, 1110xxxx, 11110xxx
    text += static_cast<char>((lead_marks & 0xFFu) | c >> (6 * (length - 1)));
    for (int i = length - 2; i >= 0; --i) text += static_cast<char>(0x80u | (c >> (6 * i) & 0x3Fu));
}

std::string replace_invalid_utf8(std::string_view text) {
    std::string valid;
    for (std::size_t offset = 0; offset < text.size();) {
        const CodePoint point = decode_utf8(text, offset);
        append_utf8(valid, point.length > 0 ? point.value : U'\uFFFD');
        offset += static_cast<std::size_t>(std::max(point.length, 1));
    }
    return valid;
}

std::string code_point_name(char32_t c) {
    std::ostringstream name;
    name << "U+" << std::hex << std::uppercase << std::setw(4) << std::setfill('0')
         << static_cast<std::uint32_t>(c);
    return name.str();
}

}  // namespace gradtile
