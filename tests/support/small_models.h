#pragma once
/// Small models that tests in several folders use. `sizes` has the layers, the width, the context and the
/// vocabulary.
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile::test {

/// A model, how it trains, and its adapters.
struct SmallModel {
    // NOLINTNEXTLINE(google-explicit-constructor)
    SmallModel(const ModelConfig& model, const TrainingOptions& how = {}, const AdapterOptions& added = {})
        : config(model), training(how), adapters(added) {}
    ModelConfig config;
    TrainingOptions training;
    AdapterOptions adapters;
};

/// Llama style with grouped queries and QK-norm.
inline ModelConfig llama_style(ModelConfig sizes) {
    sizes.heads = 4;
    sizes.kv_heads = 2;
    sizes.qk_norm = true;
    return as_llama(sizes);
}

/// Adds ALiBi, windows in every second layer, softcap, sinks and attention dropout to a model.
inline SmallModel with_attention_options(ModelConfig config) {
    config.positions = Positions::alibi;
    config.window = 3;
    config.window_pattern = 2;
    config.softcap = 2.0;
    config.sinks = true;
    return {config, {.attention_dropout = 0.2}};
}

}  // namespace gradtile::test
