#pragma once
/// INTERNAL. ModelConfig::key_offset: columns of keys that come from the token before.
#include <span>

#include <gradtile/layers/transformer/model_config.h>
#include <gradtile/layers/transformer/pass.h>

namespace gradtile {

/// The predecessors in a training pass, if the model reads them.
PreviousTokens previous_tokens(const Context& ctx, const ModelConfig& config, const Documents& documents);
/// ModelConfig::key_offset in one layer.
struct KeyOffset {
    std::span<const HeadColumns> columns;  ///< those that come from the token before; none: keys stay
    std::int64_t layer;
};
/// Replaces the columns of k [B,T,Hkv,D] by those of the token before; a text's first token keeps its own.
/// With a cache, stores the replaced columns of a text's token t with its token t + 1.
void offset_keys(const Context& ctx, const Tensor& k, const KeyOffset& offset, const Pass& pass);
/// Replaces the gradient of the changed keys by that of the keys before.
void offset_keys_backward(const Context& ctx, const Tensor& dk, const KeyOffset& offset,
                          const TrainingPass& pass);

}  // namespace gradtile
