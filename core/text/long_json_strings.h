#pragma once
/// Takes the long strings out of a JSON text before the library parses it. The library's parser copies a
/// string byte by byte, twice, at about 100 MB/s; most bytes of JSON Lines are in strings.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gradtile {

struct LongJsonString {
    std::size_t number = 0;  ///< among all strings and names of the text, from 0
    std::string value;       ///< without escapes
};

struct ShortenedJson {
    /// The text with "" in the place of each long string; empty if `strings` is empty.
    std::string text;
    std::vector<LongJsonString> strings;
};

/// Decodes the long strings that are valid JSON; the text keeps the others. Throws Error "at byte 7: a string
/// of more than 100 bytes" if a string or a number is too long: the parser would take five times its memory.
ShortenedJson take_long_strings(std::string_view text, std::size_t max_string_bytes,
                                std::size_t max_number_bytes);

}  // namespace gradtile
