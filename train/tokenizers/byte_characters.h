#pragma once
/// GPT-2's characters for bytes: its vocabulary files are text, so each byte is written as one printable
/// character. Bytes 33-126, 161-172 and 174-255 stand for the code points of the same number; the others, in
/// increasing order, for U+0100 and on.
#include <optional>
#include <string>
#include <string_view>

namespace gradtile {

/// Returns the characters, in UTF-8, that stand for the bytes.
std::string characters_of_bytes(std::string_view bytes);

/// Returns the bytes that UTF-8 characters stand for; nullopt when a character stands for none.
std::optional<std::string> bytes_of_characters(std::string_view characters);

}  // namespace gradtile
