#pragma once
/// Finds added tokens in text. The leftmost token is found first. If several tokens begin at the same place,
/// the longest one is found.
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <gradtile/train/tokenizers/encode_options.h>

namespace gradtile {

class AddedTokenFinder {
  public:
    struct Found {
        std::size_t begin = 0, length = 0;  ///< length 0: no token was found
        std::int32_t id = -1;
    };

    /// Adds a token to search for. `text` must not be empty and must outlive the finder.
    void add(std::string_view text, std::int32_t id, bool is_special) {
        tokens_[text] = {id, is_special};
        has_ordinary_ = has_ordinary_ || !is_special;
        auto& lengths = lengths_[static_cast<unsigned char>(text.front())];
        const auto place = std::ranges::lower_bound(lengths, text.size(), std::greater{});
        if (place == lengths.end() || *place != text.size()) lengths.insert(place, text.size());
    }

    /// Finds the next token. With SpecialTokens::as_text, special tokens are not found.
    Found find(std::string_view text, std::size_t from, SpecialTokens special) const {
        const bool finds_special = special == SpecialTokens::recognised;
        if (finds_special ? tokens_.empty() : !has_ordinary_) return {text.size(), 0, -1};
        for (std::size_t position = from; position < text.size(); ++position)
            for (const std::size_t length : lengths_[static_cast<unsigned char>(text[position])]) {
                if (length > text.size() - position) continue;
                const auto token = tokens_.find(text.substr(position, length));
                if (token != tokens_.end() && (finds_special || !token->second.is_special))
                    return {position, length, token->second.id};
            }
        return {text.size(), 0, -1};
    }

    std::int32_t id_of(std::string_view text) const {
        const auto token = tokens_.find(text);
        return token == tokens_.end() ? -1 : token->second.id;
    }

  private:
    struct Token {
        std::int32_t id = -1;
        bool is_special = true;
    };
    std::unordered_map<std::string_view, Token> tokens_;
    bool has_ordinary_ = false;  // at least one token is not special
    // By first byte: the tokens' lengths in decreasing order.
    std::array<std::vector<std::size_t>, 256> lengths_;
};

}  // namespace gradtile
