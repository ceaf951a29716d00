#pragma once
/// The keys and values of the tokens that a model has read. With them, the logits of the next token cost one
/// row of each matrix product instead of the whole text (Pope et al. 2022, "Efficiently Scaling Transformer
/// Inference", section 2).
#include <cstdint>
#include <span>
#include <vector>

#include <gradtile/core/tensor.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

/// Holds up to `context` tokens of B texts. Keys with rotary or learned positions depend on the positions of
/// their tokens. So to drop the first tokens, clear the cache and read the other tokens again. To drop the
/// last tokens, reduce `length`.
///
/// Transformer::logits() of PackedTexts ignores `length`, because each text has its own length.
struct KeyValueCache {
    struct Layer {
        Tensor k, v;  // [B, context, Hkv, D]
    };
    std::vector<Layer> layers;
    std::int64_t length = 0;  ///< number of tokens in the cache

    /// Allocates memory for config.context tokens of `batch` texts, from ctx's allocator.
    KeyValueCache(const Context& ctx, const ModelConfig& config, DType dtype, std::int64_t batch = 1);
    void clear() { length = 0; }
};

/// The next tokens of several texts of different lengths, for one pass. Each text has a slot, which is its
/// index on the batch axis of a cache; the cache already holds `start` tokens of the text. Matrix products
/// and norms process the tokens of all texts together.
struct PackedTexts {
    struct Text {
        std::int64_t slot = 0;    ///< index in the cache's batch
        std::int64_t start = 0;   ///< tokens of the text that the cache holds
        std::int64_t length = 0;  ///< tokens of this pass, at least 1
    };
    std::vector<Text> texts;  ///< in the order of their slots
    Tensor tokens;            ///< int32 [1, N]: the tokens of the first text, then of the second, ...
    Tensor positions;         ///< int32 [1, N]: start, start + 1, ... of each text
};
/// A text and the tokens that it reads in a pass.
struct TextToRead {
    std::int64_t slot = 0, start = 0;
    std::span<const std::int32_t> tokens;
};
/// Copies the tokens to ctx's device.
PackedTexts packed_texts(const Context& ctx, std::span<const TextToRead> texts);

}  // namespace gradtile
