#pragma once
/// The Unigram model: the most probable sequence of tokens for a text (Kudo 2018, section 3.2).
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include <gradtile/core/text/utf8.h>
#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>
#include <gradtile/train/tokenizers/internal/token_trie.h>

namespace gradtile {

class Unigram {
  public:
    /// The vocabulary must outlive the model, and has a finite score for each token.
    explicit Unigram(const BytePairVocabulary& vocabulary);

    /// One thread's memory.
    struct Scratch {
        /// The best sequence of tokens that ends at a place.
        struct Best {
            double score = 0.0;
            std::size_t begin = no_begin;  // of the last token
            std::int32_t id = -1;          // of the last token; -1: a character without a token
        };
        static constexpr std::size_t no_begin = ~std::size_t{0};
        std::vector<Best> best{};    // by place, from the beginning of the open part of the text on
        std::vector<Best> tokens{};  // the tokens of the open part, the last one first
    };

    /// Calls visit(part, id) for the tokens of a text in order; id is -1 for a character without a token. Of
    /// sequences with equal scores, the one is chosen whose last token begins first.
    template <class Visit>
    void run(std::string_view text, Scratch& scratch, Visit&& visit) const {
        std::vector<Scratch::Best>& best = scratch.best;
        std::size_t base = 0, furthest = 0;  // all tokens before `base` are known; none ends after `furthest`
        best.assign(1, {});
        for (std::size_t begin = 0; begin < text.size();) {
            if (begin == furthest && begin > base) {  // no token crosses this place
                visit_tokens(text, base, begin, scratch, visit);
                best.assign(1, {.score = best[begin - base].score});
                base = begin;
            }
            const double score = best[begin - base].score;
            const auto offer = [&](std::size_t end, std::int32_t id, double candidate) {
                if (end > furthest) {
                    furthest = end;
                    best.resize(furthest - base + 1);
                }
                Scratch::Best& known = best[end - base];
                if (known.begin == Scratch::no_begin || candidate > known.score)
                    known = {rounded(candidate), begin, id};
            };
            const std::size_t length = character_length(text, begin);
            bool has_character = false;
            trie_.for_each(text, begin, [&](std::size_t end, std::int32_t id) {
                offer(end, id, vocabulary_.scores[static_cast<std::size_t>(id)] + score);
                has_character = has_character || end == begin + length;
            });
            if (!has_character) offer(begin + length, -1, rounded(unknown_score_ + score));
            begin += length;
        }
        visit_tokens(text, base, text.size(), scratch, visit);
    }

  private:
    /// A sum as the library that made the model stores it.
    double rounded(double sum) const {
        return vocabulary_.sums_in_float32 ? static_cast<double>(static_cast<float>(sum)) : sum;
    }

    template <class Visit>
    static void visit_tokens(std::string_view text, std::size_t base, std::size_t end, Scratch& scratch,
                             Visit& visit) {
        scratch.tokens.clear();
        for (std::size_t place = end; place > base; place = scratch.tokens.back().begin)
            scratch.tokens.push_back(scratch.best[place - base]);
        std::size_t begin = base;
        for (auto token = scratch.tokens.rbegin(); token != scratch.tokens.rend(); ++token) {
            const auto next = token + 1;
            const std::size_t token_end = next == scratch.tokens.rend() ? end : next->begin;
            visit(text.substr(begin, token_end - begin), token->id);
            begin = token_end;
        }
    }

    const BytePairVocabulary& vocabulary_;
    TokenTrie trie_;
    double unknown_score_ = 0.0;
};

}  // namespace gradtile
