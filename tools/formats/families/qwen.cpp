// Qwen1.5, Qwen2 and Qwen2.5 (Yang et al. 2024), Qwen3 (Yang et al. 2025).
#include <gradtile/core/check.h>
#include <gradtile/tools/formats/families/decoder_members.h>

namespace gradtile {
namespace {

using enum MemberMeaning;

/// The window in layers from number max_window_layers on, if use_sliding_window; layer_types is any set of
/// layers.
void map_qwen_window(ConfigMembers& m, ModelConfig& c) {
    bool has_window = c.window != 0;
    std::int64_t window = has_window ? c.window : 4096, first = has_window ? 0 : c.layers;
    m.map("use_sliding_window", has_window);
    m.map_null("sliding_window", window, std::int64_t{0});
    m.map("max_window_layers", first);
    if (m.reads()) {
        c.window = has_window ? window : 0;
        c.window_pattern = 0;
        const bool has_types = m.has("layer_types");
        check(c.window == 0 || has_types || first == 0 || first >= c.layers, m.source(),
              ": max_window_layers: ", first, " is not supported; expected 0, or at least num_hidden_layers");
        if (!has_types && first >= c.layers) c.window = 0;
    }
    map_layer_types(m, c);
}

void map_qwen2(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_llama_members(m, c, training);
    map_qwen_window(m, c);
    map_rope(m, c);
}

void map_qwen3(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_llama_members(m, c, training, HeadDim::written);
    map_qwen_window(m, c);
    map_rope(m, c);
}

}  // namespace

ModelFamily qwen2_family() {
    return {.type = "qwen2",
            .architecture = "Qwen2ForCausalLM",
            .models = "Qwen1.5, Qwen2, Qwen2.5",
            .defaults =
                [] {
                    return llama_defaults({.layers = 32,
                                           .heads = 32,
                                           .kv_heads = 32,
                                           .width = 4096,
                                           .hidden = 22016,
                                           .context = 32768,
                                           .vocabulary = 151936,
                                           .qkv_bias = true});
                },
            .map = map_qwen2,
            .other_members = {{"partial_rotary_factor", refused, "[1]"},
                              // Positions of images; Qwen2.5's text models have false.
                              {"use_mrope", refused, "[false]"}},
            .tensors = llama_tensors(),
            .gguf = {.architecture = "qwen2", .check = [](const ModelConfig& c, const GgufTarget& target) {
                         refuse_windows(c, target);
                         refuse_head_width(c, target);
                     }}};
}

ModelFamily qwen3_family() {
    return {
        .type = "qwen3",
        .architecture = "Qwen3ForCausalLM",
        .models = "Qwen3",
        .defaults =
            [] {
                return llama_defaults({.layers = 32,
                                       .heads = 32,
                                       .kv_heads = 32,
                                       .width = 4096,
                                       .head_width = 128,
                                       .hidden = 22016,
                                       .context = 32768,
                                       .vocabulary = 151936,
                                       .qk_norm = true});
            },
        .map = map_qwen3,
        .other_members = {{"attention_bias", refused, "[false]"}, {"partial_rotary_factor", refused, "[1]"}},
        .tensors = llama_tensors(),
        .gguf = {.architecture = "qwen3", .check = refuse_windows}};
}

}  // namespace gradtile
