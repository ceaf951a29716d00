#pragma once
/// Small models that tests in several folders use. `sizes` has the layers, the width, the context and the
/// vocabulary.
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile::test {

/// Llama style with grouped queries and QK-norm.
inline ModelConfig llama_style(ModelConfig sizes) {
    sizes.heads = 4;
    sizes.kv_heads = 2;
    sizes.qk_norm = true;
    return as_llama(sizes);
}

/// Adds ALiBi, windows in every second layer, softcap, sinks and attention dropout to a model.
inline ModelConfig with_attention_options(ModelConfig config) {
    config.positions = Positions::alibi;
    config.window = 3;
    config.window_pattern = 2;
    config.softcap = 2.0;
    config.sinks = true;
    config.attention_dropout = 0.2;
    return config;
}

}  // namespace gradtile::test
