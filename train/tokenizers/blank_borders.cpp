#include <gradtile/train/tokenizers/internal/blank_borders.h>

namespace gradtile {

BlankBorders::BlankBorders(const BytePairVocabulary& vocabulary) {
    const auto& tokens = vocabulary.tokens;
    if (vocabulary.metaspace && vocabulary.metaspace->splits) {
        cuts_ = true;
        return;
    }
    // A piece that is a token is not merged, so a cut piece may differ. The best sequence of a Unigram model
    // depends on sums from the text's beginning on, through their rounding.
    if (vocabulary.model != SubwordModel::character_pairs || vocabulary.whole_pieces ||
        std::ranges::find(tokens, blank_symbol) == tokens.end())
        return;
    cuts_ = true;
    for (const std::string_view token : tokens)
        for (std::size_t place = token.find(blank_symbol, 1); place < token.size();
             place = token.find(blank_symbol, place + 1))
            crossed_.push_back(character_before(token, place));
    std::ranges::sort(crossed_);
    crossed_.erase(std::unique(crossed_.begin(), crossed_.end()), crossed_.end());
}

}  // namespace gradtile
