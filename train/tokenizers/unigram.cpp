#include <gradtile/train/tokenizers/internal/unigram.h>

namespace gradtile {
namespace {

std::vector<TokenTrie::Entry> trie_entries(const BytePairVocabulary& vocabulary) {
    std::vector<TokenTrie::Entry> entries;
    for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id)
        if (!vocabulary.tokens[id].empty() && (vocabulary.is_piece.empty() || vocabulary.is_piece[id]))
            entries.emplace_back(vocabulary.tokens[id], static_cast<std::int32_t>(id));
    return entries;
}

}  // namespace

Unigram::Unigram(const BytePairVocabulary& vocabulary)
    : vocabulary_(vocabulary), trie_(trie_entries(vocabulary)) {
    constexpr double unknown_penalty = 10.0;  // as in SentencePiece and in the tokenizers library
    double lowest = 0.0;
    for (const double score : vocabulary.scores) lowest = std::min(lowest, score);
    unknown_score_ = rounded(lowest - unknown_penalty);
}

}  // namespace gradtile
