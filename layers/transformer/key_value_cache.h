#pragma once
/// The keys and values of the tokens that a model has read. With them, the logits of the next token cost one
/// row of each matrix product instead of the whole text (Pope et al. 2022, "Efficiently Scaling Transformer
/// Inference", section 2).
#include <vector>

#include <gradtile/core/tensor.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

/// Holds up to `context` tokens of B texts. Keys with rotary or learned positions belong to the places of
/// their tokens: to drop the first tokens, clear the cache and read the rest again. To drop the last tokens,
/// reduce `length`.
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

}  // namespace gradtile
