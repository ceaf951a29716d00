#pragma once
/// UTF-8 (RFC 3629), strictly: overlong forms, surrogates and values beyond U+10FFFF are invalid.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gradtile {

struct CodePoint {
    char32_t value = 0;
    int length = 0;  ///< in bytes; 0: the bytes are not valid UTF-8
};

/// The code point that starts at text[offset]; offset < text.size().
CodePoint decode_utf8(std::string_view text, std::size_t offset);

/// The length of the character that starts at text[offset]; 1 for a byte that is not valid UTF-8.
inline std::size_t character_length(std::string_view text, std::size_t offset) {
    const int length = decode_utf8(text, offset).length;
    return length > 0 ? static_cast<std::size_t>(length) : 1;
}

/// Whether a byte of valid UTF-8 is not the first one of its character.
constexpr bool continues_character(char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

/// Whether the whole text is valid UTF-8.
bool is_utf8(std::string_view text);

/// Returns the text with U+FFFD replacing each byte that is not UTF-8, because JSON holds only UTF-8.
std::string replace_invalid_utf8(std::string_view text);

/// Appends a code point. Throws Error for values that UTF-8 cannot encode: surrogates, and values beyond
/// U+10FFFF.
void append_utf8(std::string& text, char32_t code_point);

/// Returns a name like "U+00E9".
std::string code_point_name(char32_t code_point);

/// The byte order mark that some editors write before UTF-8 text. It carries no information and is not part
/// of the text.
inline constexpr std::string_view utf8_byte_order_mark = "\xEF\xBB\xBF";

}  // namespace gradtile
