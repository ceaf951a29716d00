#include <gradtile/train/tokenizers/internal/character_map.h>

#include <algorithm>
#include <cstring>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

/// The longest replacement in NFKC has 33 bytes. A longer one would multiply a text's size.
constexpr std::size_t max_replacement_bytes = 256;
/// Keys have a few characters. In a damaged trie, units may lead to each other in a circle.
constexpr std::size_t max_key_bytes = 256;

std::uint32_t offset_of(std::uint32_t unit) {
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}
bool has_value(std::uint32_t unit) {
    return (unit >> 8 & 1) != 0;
}
std::uint32_t label_of(std::uint32_t unit) {
    return unit & (1u << 31 | 0xFF);  // a value has the highest bit, so it is no byte's label
}
std::uint32_t value_of(std::uint32_t unit) {
    return unit & ~(1u << 31);
}

}  // namespace

CharacterMap::CharacterMap(std::string_view table, std::string_view source) {
    std::uint32_t trie_bytes = 0;
    if (table.size() > sizeof(trie_bytes)) std::memcpy(&trie_bytes, table.data(), sizeof(trie_bytes));
    check(trie_bytes > 0 && trie_bytes % sizeof(std::uint32_t) == 0 &&
              trie_bytes < table.size() - sizeof(trie_bytes),
          source, ": precompiled_charsmap: a trie of ", trie_bytes, " bytes in ", table.size(), " bytes");
    table.remove_prefix(sizeof(trie_bytes));
    units_.resize(trie_bytes / sizeof(std::uint32_t));
    std::memcpy(units_.data(), table.data(), trie_bytes);
    replacements_ = table.substr(trie_bytes);
    check(replacements_.back() == '\0', source, ": precompiled_charsmap: does not end with a NUL byte");
    for (std::size_t begin = 0; begin < replacements_.size();) {
        const std::size_t end = replacements_.find('\0', begin);
        check(end - begin <= max_replacement_bytes, source, ": precompiled_charsmap: a replacement of ",
              end - begin, " bytes; expected at most ", max_replacement_bytes);
        begin = end + 1;
    }
}

CharacterMap::Rule CharacterMap::longest(std::string_view text) const {
    Rule rule;
    if (units_.empty()) return rule;
    std::size_t place = offset_of(units_[0]);
    for (std::size_t i = 0; i < std::min(text.size(), max_key_bytes); ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        place ^= byte;
        if (place >= units_.size() || label_of(units_[place]) != byte) break;
        const std::uint32_t unit = units_[place];
        place ^= offset_of(unit);
        if (!has_value(unit) || place >= units_.size()) continue;
        const std::size_t begin = value_of(units_[place]);
        if (begin >= replacements_.size()) continue;
        rule = {i + 1, std::string_view(replacements_.data() + begin)};
    }
    return rule;
}

}  // namespace gradtile
