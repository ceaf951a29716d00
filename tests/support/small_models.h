#pragma once
/// Small models that tests in several folders use. `sizes` has the layers, the width, the context and the
/// vocabulary.
#include <ostream>
#include <vector>

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

/// A model that has the settings of a published family.
struct FamilyModel {
    const char* name;
    ModelConfig config;

    friend void PrintTo(const FamilyModel& model, std::ostream* out) { *out << model.name; }
};

/// Changes a Llama model to the settings of another family.
namespace family {
inline void olmo2(ModelConfig& c) {
    c.block = BlockKind::output_norm;
    c.qk_norm = true;
    c.qk_norm_kind = QkNorm::projection;
}
inline void gemma(ModelConfig& c) {
    c.block = BlockKind::sandwich_norm;
    c.activation = Activation::geglu_tanh;
    c.norm_offset = c.scaled_embedding = c.tied_head = true;
    c.head_width = 12;
    c.query_scalar = 10;
    c.window = 3;
    c.window_pattern = 2;
}
inline void gemma2(ModelConfig& c) {
    gemma(c);
    c.softcap = 2;
    c.logit_softcap.limit = 3;
}
inline void gemma3(ModelConfig& c) {
    gemma(c);
    c.qk_norm = true;
    c.window_rope_base = 100;
}
inline void neox(ModelConfig& c) {
    c.block = BlockKind::parallel;
    c.norm = Norm::layer;
    c.activation = Activation::gelu;
    c.bias = true;
    c.kv_heads = 0;
    c.rotary_width = 2;
}
inline void phi3(ModelConfig& c) {
    c.rotary_width = 6;
    c.rope_scaling = {.kind = RopeKind::longrope,
                      .factor = 2,
                      .original_context = 4,
                      .short_factors = {1, 1, 1},
                      .long_factors = {1, 1.5, 3}};
}
}  // namespace family

/// One model for each family that differs from GPT-2 and Llama. Together they have every kind of block, norm,
/// rotation, stream sum, gate and softcap, and read the token before. Contexts of more than 4 tokens are
/// longer than the original one, where there is one.
inline std::vector<FamilyModel> family_models(const ModelConfig& sizes) {
    ModelConfig plain = as_llama(sizes);
    plain.heads = 4;
    plain.kv_heads = 2;
    std::vector<FamilyModel> families;
    const auto add = [&](const char* name, const auto& change) {
        families.push_back({name, plain});
        change(families.back().config);
    };
    add("llama31", [](ModelConfig& c) {
        c.rope_scaling = {.kind = RopeKind::llama3, .factor = 8, .original_context = 4, .high_factor = 2};
    });
    add("qwen2", [](ModelConfig& c) {
        c.qkv_bias = true;
        c.rope_scaling = {.kind = RopeKind::yarn, .factor = 4, .original_context = 4};
    });
    add("qwen3", [](ModelConfig& c) {
        c.head_width = 8;
        c.qk_norm = true;
        c.rope_scaling = {.kind = RopeKind::dynamic, .factor = 2, .original_context = 4};
    });
    add("smollm3", [](ModelConfig& c) { c.rope_pattern = 2; });
    add("olmo2", family::olmo2);
    add("gemma2", [](ModelConfig& c) {
        family::gemma2(c);
        c.head_width = 8;
        c.query_scalar = 12;
    });
    add("gemma3", [](ModelConfig& c) {
        family::gemma3(c);
        c.head_width = 8;
        c.rope_scaling = {.kind = RopeKind::linear, .factor = 8};
    });
    add("neox", [](ModelConfig& c) {
        family::neox(c);
        c.head_width = 8;
    });
    add("phi3", [](ModelConfig& c) {
        family::phi3(c);
        c.head_width = 8;
    });
    add("streams", [](ModelConfig& c) {
        c.layers = 4;
        c.x0_lambdas = true;
    });
    add("gates", [](ModelConfig& c) {
        c.qk_norm = c.attention_gate = c.value_embeddings = true;
        c.head_width = 8;
    });
    add("key_offset", [](ModelConfig& c) {
        c.qk_norm = c.key_offset = true;
        c.head_width = 8;
        c.rope_scaling.kind = RopeKind::half_truncated;
    });
    add("key_offset_window", [](ModelConfig& c) {  // in the layers that see the whole context
        c.key_offset = true;
        c.head_width = 8;
        c.rotary_width = 4;
        c.window = 3;
        c.window_pattern = 2;
    });
    add("records", [](ModelConfig& c) {
        c.activation = Activation::gelu_tanh;  // relu2's second derivative jumps
        c.bias = c.embedding_norm = c.qk_norm = true;
        c.qk_norm_kind = QkNorm::head_without_gain;
        c.head_width = 8;
        c.rope_scaling.kind = RopeKind::half_truncated;
        c.query_scalar = 1 / (0.12 * 0.12);
        c.logit_softcap = {15, SoftcapForm::root};
    });
    return families;
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
