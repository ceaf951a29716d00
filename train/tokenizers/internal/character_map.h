#pragma once
/// SentencePiece's table of characters and their replacements (precompiled_charsmap in a model file).
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradtile {

/// The table is a double-array trie in the format of the library darts-clone. Each unit has 32 bits: a label,
/// the offset of its children and whether a key ends here. A key's value is the position of its replacement
/// among texts that each end with a NUL byte.
class CharacterMap {
  public:
    CharacterMap() = default;
    /// Throws Error that begins with `source` if the sizes in `table` are wrong.
    CharacterMap(std::string_view table, std::string_view source);

    struct Rule {
        std::size_t length = 0;  ///< bytes of text that are replaced; 0: no rule applies
        std::string_view replacement{};
    };
    /// Returns the rule with the longest key that `text` begins with.
    Rule longest(std::string_view text) const;

  private:
    std::vector<std::uint32_t> units_;
    std::string replacements_;
};

}  // namespace gradtile
