#include <gradtile/train/tokenizers/internal/word_borders.h>

#include <gradtile/core/text/utf8.h>

namespace gradtile {
namespace {

std::string_view character_at(std::string_view text, std::size_t position) {
    if (position >= text.size()) return {};
    return text.substr(position, static_cast<std::size_t>(decode_utf8(text, position).length));
}

/// Returns the character that ends at `end`; empty if there is none.
std::string_view character_before(std::string_view text, std::size_t end) {
    for (std::size_t length = 1; length <= 4 && length <= end; ++length)
        if (const auto character = character_at(text.substr(0, end), end - length);
            character.size() == length)
            return character;
    return {};
}

bool is_match(const Regex& regex, std::string_view character) {
    return !character.empty() &&
           Regex::Matcher(regex).find(character, 0) == Regex::Range{0, character.size()};
}

}  // namespace

WordBorders::WordBorders(std::string_view source)
    : space_("\\s", source), word_("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]", source) {}

bool WordBorders::cuts_word(std::string_view text, std::size_t begin, std::size_t end) const {
    return is_match(word_, character_before(text, begin)) || is_match(word_, character_at(text, end));
}

std::size_t WordBorders::begin_of_space(std::string_view text, std::size_t end) const {
    for (;;) {
        const std::string_view character = character_before(text, end);
        if (!is_match(space_, character)) return end;
        end -= character.size();
    }
}

std::size_t WordBorders::end_of_space(std::string_view text, std::size_t begin) const {
    for (;;) {
        const std::string_view character = character_at(text, begin);
        if (!is_match(space_, character)) return begin;
        begin += character.size();
    }
}

}  // namespace gradtile
