#pragma once
/// INTERNAL. The token before each token of a pass, for Smear and ModelConfig::key_offset.
#include <span>

#include <gradtile/layers/transformer/model_config.h>
#include <gradtile/layers/transformer/pass.h>

namespace gradtile {

/// previous_rows() for x [B,T,H,D] of a pass. cached [slots, capacity + 1, H, D] holds the row of each text's
/// token t at t + 1, and receives those of x; it is undefined in training.
Tensor previous_rows(const Context& ctx, const Tensor& x, const Pass& pass, const Tensor& cached,
                     FirstToken first);
/// The predecessors in a training pass, if the model reads them.
PreviousTokens previous_tokens(const Context& ctx, const ModelConfig& config, const Documents& documents);
/// ModelConfig::key_offset in one layer.
struct KeyOffset {
    std::span<const HeadColumns> columns;  ///< those that come from the token before; none: keys stay
    std::int64_t layer;
};
/// Replaces the columns of k [B,T,Hkv,D] by those of the token before; a text's first token keeps its own.
void offset_keys(const Context& ctx, const Tensor& k, const KeyOffset& offset, const Pass& pass);
/// Replaces the gradient of the changed keys by that of the keys before.
void offset_keys_backward(const Context& ctx, const Tensor& dk, const KeyOffset& offset,
                          const TrainingPass& pass);

}  // namespace gradtile
