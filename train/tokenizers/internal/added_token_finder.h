#pragma once
/// Finds added tokens in text. The leftmost token is found first. If several tokens begin at the same place,
/// the longest one is found.
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>
#include <gradtile/train/tokenizers/internal/word_borders.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

class AddedTokenFinder {
  public:
    struct Token {
        std::string_view text{};  ///< must not be empty and must outlive the finder
        std::int32_t id = -1;
        bool special = true, lstrip = false, rstrip = false, single_word = false;
    };

    /// Adds a token to search for. Throws Error that begins with `source` if the token has an option that
    /// needs regular expressions, and the build has none.
    void add(const Token& token, std::string_view source = "") {
        tokens_[token.text] = token;
        has_ordinary_ = has_ordinary_ || !token.special;
        if ((token.lstrip || token.rstrip || token.single_word) && !borders_)
            borders_ = std::make_shared<const WordBorders>(source);
        auto& lengths = lengths_[static_cast<unsigned char>(token.text.front())];
        const auto place = std::ranges::lower_bound(lengths, token.text.size(), std::greater{});
        if (place == lengths.end() || *place != token.text.size()) lengths.insert(place, token.text.size());
    }

    /// Calls visit(part, id) for a text's parts in order: tokens with their ids, and the text between them
    /// with -1. With SpecialTokens::as_text, special tokens are text.
    template <class Visit>
    void split(std::string_view text, SpecialTokens special, Visit&& visit) const {
        const bool finds_special = special == SpecialTokens::recognised;
        const bool finds_none = finds_special ? tokens_.empty() : !has_ordinary_;
        std::size_t done = 0;
        for (std::size_t position = finds_none ? text.size() : 0; position < text.size();) {
            const Token* const token = token_at(text, position);
            if (!token) {
                ++position;
                continue;
            }
            const std::size_t match = position;
            position += token->text.size();
            // A token that is left as text hides the tokens within it, as in the tokenizers library.
            if (token->special && !finds_special) continue;
            if (token->single_word && borders_->cuts_word(text, match, position)) continue;
            const std::size_t begin =
                token->lstrip ? std::max(borders_->begin_of_space(text, match), done) : match;
            if (token->rstrip) position = borders_->end_of_space(text, position);
            if (begin > done) visit(text.substr(done, begin - done), std::int32_t{-1});
            visit(text.substr(begin, position - begin), token->id);
            done = position;
        }
        if (done < text.size()) visit(text.substr(done), std::int32_t{-1});
    }

    /// Returns the length of the longest token at a position; 0: there is none.
    std::size_t length_at(std::string_view text, std::size_t position) const {
        const Token* const token = token_at(text, position);
        return token ? token->text.size() : 0;
    }

    std::int32_t id_of(std::string_view text) const {
        const auto token = tokens_.find(text);
        return token == tokens_.end() ? -1 : token->second.id;
    }

  private:
    const Token* token_at(std::string_view text, std::size_t position) const {
        for (const std::size_t length : lengths_[static_cast<unsigned char>(text[position])]) {
            if (length > text.size() - position) continue;
            const auto token = tokens_.find(text.substr(position, length));
            if (token != tokens_.end()) return &token->second;
        }
        return nullptr;
    }

    std::unordered_map<std::string_view, Token> tokens_;
    bool has_ordinary_ = false;  // at least one token is not special
    std::shared_ptr<const WordBorders> borders_;
    // By first byte: the tokens' lengths in decreasing order.
    std::array<std::vector<std::size_t>, 256> lengths_;
};

}  // namespace gradtile
