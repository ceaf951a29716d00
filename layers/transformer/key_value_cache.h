#pragma once
/// Keys and values for the tokens that a model has read. With them, next-token logits cost one row per matrix
/// product instead of the whole text (Pope et al. 2022, "Efficiently Scaling Transformer Inference", section
/// 2).
#include <cstdint>
#include <span>
#include <vector>

#include <gradtile/core/tensor.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

struct PackedTexts;

/// Holds up to `capacity` tokens for each of B texts. Keys with rotary or learned positions depend on their
/// tokens' positions. So to drop the first tokens, clear the cache and read the other tokens again. To drop
/// the last tokens, read the next token with a smaller PackedTexts::Text::start.
struct KeyValueCache {
    struct Layer {
        // [B, capacity, Hkv, D]; with config.key_offset [B, capacity + 1, Hkv, D], because the columns that
        // keys have from the token before are written with that token
        Tensor k, v;
    };
    std::vector<Layer> layers;
    std::int64_t capacity;

    /// Allocates memory for `batch` texts with `tokens` tokens each, from ctx's allocator; -1: config.context
    /// tokens, which is also the most.
    KeyValueCache(const Context& ctx, const ModelConfig& config, DType dtype, std::int64_t batch = 1,
                  std::int64_t tokens = -1);
    /// Copies all that a cache with less capacity, for as many texts, holds.
    void copy_from(const Context& ctx, const KeyValueCache& shorter) const;
    /// Throws Error unless every text's tokens fit its slot.
    void check_fits(const PackedTexts& pass) const;
    /// Bytes for one text's keys and values.
    static double bytes_of_text(const ModelConfig& config, DType dtype, std::int64_t tokens);
};

/// The next tokens for several texts with different lengths, in one pass. Each text has a slot, which is its
/// index on a cache's batch axis; the cache already holds the text's first `start` tokens. Matrix products
/// and norms process all texts' tokens together.
struct PackedTexts {
    struct Text {
        std::int64_t slot = 0;    ///< index in the cache's batch
        std::int64_t start = 0;   ///< how many of the text's tokens are cached
        std::int64_t length = 0;  ///< tokens in this pass, at least 1
    };
    std::vector<Text> texts;  ///< in slot order
    Tensor tokens;            ///< int32 [1, N]: the first text's tokens, then the second's, ...
    Tensor positions;         ///< int32 [1, N]: start, start + 1, ... for each text
};
/// A text and the tokens that it reads in a pass.
struct TextToRead {
    std::int64_t slot = 0, start = 0;
    std::span<const std::int32_t> tokens;
};
/// Copies the tokens to ctx's device.
PackedTexts packed_texts(const Context& ctx, std::span<const TextToRead> texts);

/// Texts in a pass that have neighbouring slots, equal start and equal length, so that one attention call
/// computes all of them.
struct EqualTexts {
    PackedTexts::Text first;
    std::int64_t count = 0;
    std::int64_t begin = 0;  ///< index of their first token in the pass

    /// These texts' rows in x [1, N, H, D], as [count, length, H, D].
    Tensor rows_of(const Tensor& x) const;
    /// `length` cached keys or values of each text, starting at token `from`: [count, length, Hkv, D].
    Tensor cached(const Tensor& kv, std::int64_t from, std::int64_t length) const;
};
/// Combines runs of texts into as few groups as possible.
std::vector<EqualTexts> equal_texts(std::span<const PackedTexts::Text> texts);

}  // namespace gradtile
