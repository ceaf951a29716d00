#pragma once
/// GPT-2's characters for bytes: its vocabulary files are text, so each byte is written as one printable
/// character. Bytes 33-126, 161-172 and 174-255 are written as the code points with the same number. The
/// other bytes, in increasing order, are written as U+0100, U+0101 and so on.
#include <optional>
#include <string>
#include <string_view>

namespace gradtile {

/// Returns the characters, in UTF-8, that represent the bytes.
std::string characters_of_bytes(std::string_view bytes);

/// Returns the bytes that UTF-8 characters represent; nullopt if a character represents no byte.
std::optional<std::string> bytes_of_characters(std::string_view characters);

}  // namespace gradtile
