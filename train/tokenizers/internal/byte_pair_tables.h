#pragma once
/// The tables that BytePairEncoding computes from its vocabulary.
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/internal/added_token_finder.h>
#include <gradtile/train/tokenizers/internal/blank_borders.h>
#include <gradtile/train/tokenizers/internal/normalizer.h>
#include <gradtile/train/tokenizers/internal/pair_table.h>
#include <gradtile/train/tokenizers/internal/piece_cache.h>
#include <gradtile/train/tokenizers/internal/text_splitter.h>
#include <gradtile/train/tokenizers/internal/token_index.h>
#include <gradtile/train/tokenizers/internal/unigram.h>

namespace gradtile {

struct BytePairEncoding::Tables {
    Tables(const BytePairVocabulary& vocabulary, std::string_view source)
        : metaspace(vocabulary.metaspace),
          normalizer(vocabulary.normalizer, source),
          splitter(vocabulary.patterns, source),
          borders(vocabulary),
          token_index(vocabulary.tokens) {
        byte_ids.fill(-1);
    }

    /// Calls visit(part, id) for a text's parts in order: added tokens with their ids, and the normalized
    /// text between them with -1. The normalized texts are added to `storage`, which must outlive them.
    template <class Visit>
    void for_each_part(std::string_view text, SpecialTokens special, std::deque<std::string>& storage,
                       Visit&& visit) const {
        added.split(text, special, [&](std::string_view segment, std::int32_t id) {
            if (id >= 0) return visit(segment, id);
            const bool is_first = segment.data() == text.data();
            if (!normalizer.is_identity()) segment = storage.emplace_back(normalizer.run(segment));
            added_normalized.split(segment, special, [&](std::string_view part, std::int32_t part_id) {
                if (part_id < 0 && metaspace)
                    part = storage.emplace_back(
                        with_blank_symbols(part, is_first && part.data() == segment.data()));
                visit(part, part_id);
            });
        });
    }

    std::optional<Metaspace> metaspace;
    Normalizer normalizer;
    TextSplitter splitter;
    BlankBorders borders;
    PairTable pairs;
    std::optional<Unigram> unigram;
    std::array<std::int32_t, 256> byte_ids;  // each byte's token; -1: no token
    TokenIndex token_index;                  // token ids by their bytes
    // Finders for added tokens. Tokens that are not normalized are found first. Normalized tokens are found
    // in the text between them.
    AddedTokenFinder added, added_normalized;
    std::deque<std::string> normalized_names;  // the texts that added_normalized searches for
    std::vector<std::string> decoded;          // SentencePiece's models: each id's text, decoded
    mutable PieceCaches caches;

  private:
    std::string with_blank_symbols(std::string_view part, bool is_first) const {
        std::string result = replaced(part, " ", blank_symbol);
        const bool prepends = metaspace->prepend == Metaspace::Prepend::always ||
                              (metaspace->prepend == Metaspace::Prepend::first && is_first);
        if (prepends && !result.starts_with(blank_symbol)) result.insert(0, blank_symbol);
        return result;
    }
};

}  // namespace gradtile
