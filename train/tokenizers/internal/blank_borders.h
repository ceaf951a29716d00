#pragma once
/// Where a text with blank_symbol for each blank is cut into words.
#include <algorithm>
#include <string_view>
#include <vector>

#include <gradtile/core/text/utf8.h>
#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>

namespace gradtile {

/// Cuts before blank_symbol. Metaspace asks for it; without Metaspace, merges of characters give the same ids
/// in a text that is cut where no token has these two characters side by side. Words are short and frequent,
/// so they can be cached, and parts of a text can be encoded by different threads.
class BlankBorders {
  public:
    explicit BlankBorders(const BytePairVocabulary& vocabulary);

    /// Whether texts are cut at all.
    bool cuts() const { return cuts_; }
    /// Returns where the word that holds text[from] ends; `from` need not be a word's beginning.
    std::size_t next(std::string_view text, std::size_t from) const {
        if (!cuts_) return text.size();
        for (std::size_t place = text.find(blank_symbol, from + 1); place < text.size();
             place = text.find(blank_symbol, place + 1))
            if (!is_crossed(text, place)) return place;
        return text.size();
    }

  private:
    static std::string_view character_before(std::string_view text, std::size_t place) {
        std::size_t begin = place - 1;
        while (begin > 0 && continues_character(text[begin])) --begin;
        return text.substr(begin, place - begin);
    }
    bool is_crossed(std::string_view text, std::size_t place) const {
        return !crossed_.empty() && std::ranges::binary_search(crossed_, character_before(text, place));
    }

    bool cuts_ = false;
    std::vector<std::string_view> crossed_;  // characters that a token has before blank_symbol, sorted
};

}  // namespace gradtile
