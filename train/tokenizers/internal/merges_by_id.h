#pragma once
/// Merges for a vocabulary without a merge list (BytePairVocabulary::merges_by_id).
#include <algorithm>
#include <utility>
#include <vector>

#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>
#include <gradtile/train/tokenizers/internal/token_index.h>

namespace gradtile {

/// Visits merges that give the same ids as tiktoken's rule. They are ordered by result, then by their parts.
template <class Visit>
void for_each_merge_by_id(const BytePairVocabulary& vocabulary, const TokenIndex& index, Visit&& visit) {
    std::vector<std::pair<std::int32_t, std::int32_t>> parts;
    for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
        if (!vocabulary.is_piece.empty() && !vocabulary.is_piece[id]) continue;
        const std::string_view text = vocabulary.tokens[id];
        parts.clear();
        for (std::size_t cut = 1; cut < text.size(); ++cut) {
            const std::int32_t left = index.find(text.substr(0, cut));
            const std::int32_t right = left < 0 ? -1 : index.find(text.substr(cut));
            if (right >= 0) parts.emplace_back(left, right);
        }
        std::ranges::sort(parts);
        for (const auto& [left, right] : parts)
            visit(BytePairMerge{left, right, static_cast<std::int32_t>(id)});
    }
}

}  // namespace gradtile
