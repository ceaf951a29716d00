#pragma once
/// Spaces and words beside an added token: AddedToken::lstrip, rstrip and single_word.
#include <string_view>

#include <gradtile/train/tokenizers/internal/regex.h>

namespace gradtile {

/// Spaces are \s and words consist of \w, as Unicode's Technical Standard 18 defines them. In each function
/// the text may be any bytes; those that are not UTF-8 belong to no word and are no space.
class WordBorders {
  public:
    /// Throws Error that begins with `source` if the build has no PCRE2.
    explicit WordBorders(std::string_view source);

    /// Returns whether a word's character stands directly before `begin` or at `end`.
    bool cuts_word(std::string_view text, std::size_t begin, std::size_t end) const;
    /// Returns where the spaces that end at `end` begin.
    std::size_t begin_of_space(std::string_view text, std::size_t end) const;
    /// Returns where the spaces that begin at `begin` end.
    std::size_t end_of_space(std::string_view text, std::size_t begin) const;

  private:
    Regex space_, word_;
};

}  // namespace gradtile
