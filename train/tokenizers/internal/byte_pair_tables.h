#pragma once
/// The tables that BytePairEncoding computes from its vocabulary.
#include <array>
#include <cstdint>
#include <string_view>

#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/internal/added_token_finder.h>
#include <gradtile/train/tokenizers/internal/pair_table.h>
#include <gradtile/train/tokenizers/internal/text_splitter.h>
#include <gradtile/train/tokenizers/internal/token_index.h>

namespace gradtile {

struct BytePairEncoding::Tables {
    Tables(const BytePairVocabulary& vocabulary, std::string_view source)
        : splitter(vocabulary.patterns, source), token_index(vocabulary.tokens) {
        byte_ids.fill(-1);
    }

    TextSplitter splitter;
    PairTable pairs;
    std::array<std::int32_t, 256> byte_ids;  // each byte's token; -1: no token
    TokenIndex token_index;                  // token ids by their bytes
    // Finders for added tokens. Tokens that are not normalized are found first. Normalized tokens are found
    // in the text between them.
    AddedTokenFinder added, added_normalized;
};

}  // namespace gradtile
