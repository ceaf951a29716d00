#pragma once
/// The kinds of forward pass. One model serves all. Only MultiHeadAttention differs between them, in three
/// places: where keys and values are kept, which attention operator reads them, and how the rotation angles
/// are computed. A pass is a variant and not an interface, because what differs is attention's code and not
/// the pass's.
#include <variant>
#include <vector>

#include <gradtile/attention/decode.h>
#include <gradtile/core/dropout_key.h>
#include <gradtile/layers/documents.h>
#include <gradtile/layers/embedding.h>
#include <gradtile/layers/rope.h>
#include <gradtile/layers/transformer/key_value_cache.h>

namespace gradtile {

/// The positions of a pass's tokens in their texts.
struct TokenPositions {
    Tensor each = {};        ///< int32, one per token; undefined: start, start + 1, ... in each row
    std::int64_t start = 0;  ///< used without `each`
    std::int64_t end = -1;   ///< all positions are below `end`; -1: below the context
};

/// The rotation angles for a pass's tokens, which the layers share; undefined without rotations.
struct LayerAngles {
    Rope::Angles common = {};
    Rope::Angles windowed = {};  ///< in layers with a window, if these have a base of their own
};

/// The pass reads whole sequences [B,T], for training and evaluation. Attention uses only their keys and
/// values. A backward pass may follow.
struct TrainingPass {
    DropoutKey dropout = {};  ///< the default key drops nothing
    /// Packed documents, answers that share a prompt, or parts of sequences. Undefined: each batch row is one
    /// causal document.
    Documents documents = {};
    std::int64_t max_window = 0;   ///< keys that a token sees in any layer, at most; 0: no limit
    Embedding::Saved tokens = {};  ///< int32 [B,T], which value embeddings read
    PreviousTokens previous = {};  ///< of `documents`, with ModelConfig::key_offset

    TokenPositions token_positions() const {
        if (!documents) return {};
        return {.each = documents.positions, .end = documents.end_position()};
    }
    /// The key for a place in the model: 0 are the embeddings, i + 1 is block i.
    DropoutKey key_at(std::int64_t place) const { return dropout.at(static_cast<std::uint64_t>(place)); }
};

/// The next tokens of several texts, in one row [1, N]. Attention appends their keys and values to the cache
/// and reads each text's part of it. With ModelConfig::prefix, the tokens of a text that has none in the
/// cache are its prompt and see each other.
struct CachedPass {
    std::vector<EqualTexts> texts;
    TokenPositions positions;
    const KeyValueCache& cache;
    LayerAngles angles = {};       ///< for the N tokens
    Embedding::Saved tokens = {};  ///< the N tokens, int32 [1, N], which value embeddings read

    const TokenPositions& token_positions() const { return positions; }
};

/// One token for each of R texts, in one row [1, R]. Lengths are in device memory, so that a CUDA graph that
/// contains the pass can be replayed for every token.
struct StepPass {
    Tensor positions;  ///< int32 [R]: how many of the text's tokens the cache holds
    Tensor slots;      ///< int32 [R]: the text's slot in the cache; all different
    const KeyValueCache& cache;
    const attention::DecodeScratch& scratch;  ///< for at least R rows, see Transformer::step_scratch()
    LayerAngles angles = {};                  ///< for the R tokens
    Embedding::Saved tokens = {};             ///< the R tokens, int32 [1, R], which value embeddings read

    TokenPositions token_positions() const {
        return {.each = positions.reshape({1, positions.elements()}), .end = cache.capacity()};
    }
};

using Pass = std::variant<TrainingPass, CachedPass, StepPass>;

inline TokenPositions token_positions(const Pass& pass) {
    return std::visit([](const auto& kind) -> TokenPositions { return kind.token_positions(); }, pass);
}
/// The cache of generation's passes; null in training.
inline const KeyValueCache* cache_of(const Pass& pass) {
    if (const auto* const cached = std::get_if<CachedPass>(&pass)) return &cached->cache;
    const auto* const step = std::get_if<StepPass>(&pass);
    return step != nullptr ? &step->cache : nullptr;
}
/// TrainingPass::key_at(); other passes drop nothing.
inline DropoutKey dropout_key(const Pass& pass, std::int64_t place) {
    const auto* const training = std::get_if<TrainingPass>(&pass);
    return training != nullptr ? training->key_at(place) : DropoutKey{};
}

}  // namespace gradtile
