#include <gradtile/train/tokenizers/byte_characters.h>

#include <array>
#include <cstdint>

#include <gradtile/core/text/utf8.h>

namespace gradtile {
namespace {

constexpr bool stands_for_itself(int byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr int max_byte_character = 256 + 67;  // 68 bytes are written as the code points 256 to 323

struct ByteCharacters {
    std::array<char32_t, 256> character_of{};
    std::array<std::int16_t, max_byte_character + 1> byte_of{};
};

constexpr ByteCharacters byte_characters() {
    ByteCharacters table;
    for (auto& byte : table.byte_of) byte = -1;
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
        const char32_t c = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
        table.character_of[static_cast<std::size_t>(byte)] = c;
        table.byte_of[c] = static_cast<std::int16_t>(byte);
    }
    return table;
}

constexpr ByteCharacters byte_character_table = byte_characters();

}  // namespace

std::string characters_of_bytes(std::string_view bytes) {
    std::string text;
    text.reserve(bytes.size());
    for (const char byte : bytes)
        append_utf8(text, byte_character_table.character_of[static_cast<unsigned char>(byte)]);
    return text;
}

std::optional<std::string> bytes_of_characters(std::string_view characters) {
    std::string bytes;
    bytes.reserve(characters.size());
    for (std::size_t i = 0; i < characters.size();) {
        const CodePoint point = decode_utf8(characters, i);
        if (point.length == 0 || point.value > max_byte_character) return std::nullopt;
        const std::int16_t byte = byte_character_table.byte_of[point.value];
        if (byte < 0) return std::nullopt;
        bytes += static_cast<char>(byte);
        i += static_cast<std::size_t>(point.length);
    }
    return bytes;
}

}  // namespace gradtile
