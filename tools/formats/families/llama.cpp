// Llama (Touvron et al. 2023) and the families that differ from it in few settings.
#include <gradtile/core/check.h>
#include <gradtile/tools/formats/families/decoder_members.h>
#include <gradtile/tools/formats/families/model_family.h>

namespace gradtile {
namespace {

using enum MemberMeaning;

void map_silu(ConfigMembers& m, ModelConfig& c) {
    m.map<Activation>("hidden_act", c.activation, {{"silu", Activation::swiglu}});
}

TensorNames llama_tensors() {
    return {"model.layers.",
            {{"norm_1", {"input_layernorm"}},
             {"norm_2", {"post_attention_layernorm"}},
             {"attn.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
             {"attn.q_norm", {"self_attn.q_norm"}},
             {"attn.k_norm", {"self_attn.k_norm"}},
             {"attn.proj", {"self_attn.o_proj"}},
             {"mlp.gate_up", {"mlp.gate_proj", "mlp.up_proj"}},
             {"mlp.down", {"mlp.down_proj"}}},
            {{"wte", {"model.embed_tokens"}}, {"norm_f", {"model.norm"}}, {"head", {"lm_head"}}}};
}

void map_llama(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_llama_sizes(m, c, training);
    map_silu(m, c);
    map_head_dim(m, c, HeadDim::written);
    map_biases(m, c);
    map_rope(m, c);
    check(c.heads == 0 || c.width % c.heads == 0, m.source(), ": num_attention_heads: ", c.heads,
          " does not divide hidden_size ", c.width);
}

void map_mistral(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_llama_sizes(m, c, training);
    map_silu(m, c);
    map_head_dim(m, c, HeadDim::written);
    m.map_null("sliding_window", c.window, std::int64_t{0});
    map_rope(m, c);
}

void map_qwen2(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_llama_sizes(m, c, training);
    map_silu(m, c);
    map_head_dim(m, c);
    map_qwen_window(m, c);
    map_rope(m, c);
}

void map_qwen3(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_llama_sizes(m, c, training);
    map_silu(m, c);
    map_head_dim(m, c, HeadDim::written);
    map_qwen_window(m, c);
    map_rope(m, c);
}

void map_smollm3(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    constexpr const char* rotating_layers = "no_rope_layers";  // 1: the layer rotates
    map_llama_sizes(m, c, training);
    map_silu(m, c);
    map_head_dim(m, c);
    map_biases(m, c);
    m.map("no_rope_layer_interval", c.rope_pattern);
    if (const JsonValue* const list = m.find(rotating_layers); list && !list->is_null()) {
        check(list->is_array() && std::cmp_greater_equal(list->size(), c.layers), m.source(), ": ",
              rotating_layers, ": ", json_excerpt(*list), "; expected a list of at least ", c.layers,
              " numbers");
        std::vector<bool> is_plain;
        for (std::int64_t layer = 0; layer < c.layers; ++layer) is_plain.push_back((*list)[layer] == 0);
        c.rope_pattern = pattern_of(is_plain, m, rotating_layers);
    }
    JsonValue::Array rotates;
    for (std::int64_t layer = 0; !m.reads() && layer < c.layers; ++layer)
        rotates.emplace_back(c.rotates(layer) ? 1 : 0);
    m.write(rotating_layers, rotates);
    map_layer_types(m, c);
    map_rope(m, c);
}

void map_olmo2(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_llama_sizes(m, c, training);
    map_silu(m, c);
    map_head_dim(m, c);
    map_rope(m, c);
}

void map_phi3(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_llama_sizes(m, c, training);
    map_silu(m, c);
    map_head_dim(m, c);
    m.map_null("sliding_window", c.window, std::int64_t{0});
    m.write("resid_pdrop", training.dropout);
    m.write("embd_pdrop", training.dropout);
    map_rope(
        m, c,
        {.rotated_part = "partial_rotary_factor", .original_context = "original_max_position_embeddings"});
    check(!m.reads() || c.rope_scaling.kind == RopeKind::none || c.rope_scaling.kind == RopeKind::longrope,
          m.source(), ": rope_scaling: rope_type ", name_of(c.rope_scaling.kind),
          " is not supported; expected longrope");
}

ModelConfig llama_defaults(ModelConfig sizes) {
    ModelConfig config = as_llama(sizes);
    if (sizes.norm_epsilon == ModelConfig().norm_epsilon) config.norm_epsilon = 1e-6;
    return config;
}

// What llama.cpp's architectures do not compute.

void refuse_windows(const ModelConfig& c, std::string_view architecture, std::string_view source) {
    check(c.window == 0 || c.window >= c.context, source, ": window ", c.window,
          " cannot be stored in GGUF's ", architecture, "; it has none");
}
void refuse_head_width(const ModelConfig& c, std::string_view architecture, std::string_view source) {
    check(c.width % c.heads == 0 && c.head_dim() == c.width / c.heads, source, ": head-width ", c.head_dim(),
          " cannot be stored in GGUF's ", architecture, "; it has width / heads");
}
void refuse_tied_head(const ModelConfig& c, std::string_view architecture, std::string_view source) {
    check(!c.tied_head, source, ": tied-head true cannot be stored in GGUF's ", architecture,
          "; it has a head of its own");
}
void refuse_biases(const ModelConfig& c, std::string_view architecture, std::string_view source) {
    check(!c.bias, source, ": bias true cannot be stored in GGUF's ", architecture, "; it has none");
}

}  // namespace

ModelFamily llama_family() {
    return {.type = "llama",
            .architecture = "LlamaForCausalLM",
            .models = "Llama 1 to 3.2, TinyLlama, SmolLM and SmolLM2",
            .defaults =
                [] {
                    return llama_defaults({.layers = 32,
                                           .heads = 32,
                                           .width = 4096,
                                           .hidden = 11008,
                                           .context = 2048,
                                           .vocabulary = 32000});
                },
            .map = map_llama,
            .other_members = {{"attention_dropout", harmless},
                              {"is_llama_config", harmless},
                              {"max_sequence_length", harmless},
                              // Sums in another order.
                              {"pretraining_tp", harmless},
                              {"partial_rotary_factor", refused, "[1]"},
                              {"rope_interleaved", refused, "[false]"}},
            .tensors = llama_tensors(),
            .gguf = {.architecture = "llama",
                     .qk_order = RowOrder::pairs,
                     .check = [](const ModelConfig& c, std::string_view source) {
                         refuse_biases(c, "llama", source);
                         refuse_windows(c, "llama", source);
                     }}};
}

ModelFamily mistral_family() {
    ModelFamily family = llama_family();
    family.type = "mistral";
    family.architecture = "MistralForCausalLM";
    family.models = "Mistral 7B, Mistral Nemo, Zephyr";
    family.defaults = [] {
        ModelConfig config = llama_defaults({.layers = 32,
                                             .heads = 32,
                                             .kv_heads = 8,
                                             .width = 4096,
                                             .hidden = 14336,
                                             .context = 131072,
                                             .vocabulary = 32000});
        config.window = 4096;
        return config;
    };
    family.map = map_mistral;
    family.other_members = {{"attention_dropout", harmless}, {"partial_rotary_factor", refused, "[1]"}};
    return family;
}

ModelFamily qwen2_family() {
    return {.type = "qwen2",
            .architecture = "Qwen2ForCausalLM",
            .models = "Qwen1.5, Qwen2, Qwen2.5",
            .defaults =
                [] {
                    ModelConfig config = llama_defaults({.layers = 32,
                                                         .heads = 32,
                                                         .kv_heads = 32,
                                                         .width = 4096,
                                                         .hidden = 22016,
                                                         .context = 32768,
                                                         .vocabulary = 151936});
                    config.qkv_bias = true;
                    return config;
                },
            .map = map_qwen2,
            .other_members = {{"attention_dropout", harmless}, {"partial_rotary_factor", refused, "[1]"}},
            .tensors = llama_tensors(),
            .gguf = {.architecture = "qwen2", .check = [](const ModelConfig& c, std::string_view source) {
                         refuse_windows(c, "qwen2", source);
                         refuse_head_width(c, "qwen2", source);
                     }}};
}

ModelFamily qwen3_family() {
    return {.type = "qwen3",
            .architecture = "Qwen3ForCausalLM",
            .models = "Qwen3",
            .defaults =
                [] {
                    ModelConfig config = llama_defaults({.layers = 32,
                                                         .heads = 32,
                                                         .kv_heads = 32,
                                                         .width = 4096,
                                                         .head_width = 128,
                                                         .hidden = 22016,
                                                         .context = 32768,
                                                         .vocabulary = 151936});
                    config.qk_norm = true;
                    return config;
                },
            .map = map_qwen3,
            .other_members = {{"attention_dropout", harmless},
                              {"attention_bias", refused, "[false]"},
                              {"partial_rotary_factor", refused, "[1]"}},
            .tensors = llama_tensors(),
            .gguf = {.architecture = "qwen3", .check = [](const ModelConfig& c, std::string_view source) {
                         refuse_windows(c, "qwen3", source);
                     }}};
}

ModelFamily smollm3_family() {
    return {.type = "smollm3",
            .architecture = "SmolLM3ForCausalLM",
            .models = "SmolLM3",
            .defaults =
                [] {
                    ModelConfig config = llama_defaults({.layers = 36,
                                                         .heads = 16,
                                                         .kv_heads = 4,
                                                         .width = 2048,
                                                         .hidden = 11008,
                                                         .context = 32768,
                                                         .vocabulary = 128256,
                                                         .rope_base = 2e6,
                                                         .rope_pattern = 4});
                    config.tied_head = true;
                    return config;
                },
            .map = map_smollm3,
            .other_members = {{"attention_dropout", harmless},
                              {"sliding_window", harmless},  // without use_sliding_window
                              {"use_sliding_window", refused, "[false]"},
                              {"max_window_layers", harmless},
                              {"pretraining_tp", harmless},
                              {"partial_rotary_factor", refused, "[1]"}},
            .tensors = llama_tensors(),
            .gguf = {.architecture = "smollm3",
                     .qk_order = RowOrder::pairs,
                     .check = [](const ModelConfig& c, std::string_view source) {
                         refuse_biases(c, "smollm3", source);
                         check(c.rope_pattern == 4, source, ": rope-pattern ", c.rope_pattern,
                               " cannot be stored in GGUF's smollm3; it has 4");
                     }}};
}

ModelFamily olmo2_family() {
    TensorNames tensors = llama_tensors();
    tensors.blocks[0] = {"norm_1", {"post_attention_layernorm"}};
    tensors.blocks[1] = {"norm_2", {"post_feedforward_layernorm"}};
    return {.type = "olmo2",
            .architecture = "Olmo2ForCausalLM",
            .models = "OLMo 2",
            .defaults =
                [] {
                    ModelConfig config = as_llama({.layers = 32,
                                                   .heads = 32,
                                                   .width = 4096,
                                                   .hidden = 11008,
                                                   .context = 2048,
                                                   .vocabulary = 50304,
                                                   .block = BlockKind::output_norm,
                                                   .norm_epsilon = 1e-5});
                    config.qk_norm = true;
                    config.qk_norm_kind = QkNorm::projection;
                    return config;
                },
            .map = map_olmo2,
            .other_members = {{"attention_dropout", harmless},
                              {"attention_bias", refused, "[false]"},
                              {"pretraining_tp", harmless},
                              {"partial_rotary_factor", refused, "[1]"}},
            .tensors = tensors,
            .gguf = {.architecture = "olmo2",
                     .has_output_norms = true,
                     .check = [](const ModelConfig& c, std::string_view source) {
                         refuse_head_width(c, "olmo2", source);
                         refuse_tied_head(c, "olmo2", source);
                     }}};
}

ModelFamily phi3_family() {
    TensorNames tensors = llama_tensors();
    for (ModuleNames& module : tensors.blocks) {
        if (module.own == "attn.qkv") module.theirs = {"self_attn.qkv_proj"};
        if (module.own == "mlp.gate_up") module.theirs = {"mlp.gate_up_proj"};
    }
    return {.type = "phi3",
            .architecture = "Phi3ForCausalLM",
            .models = "Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini",
            .defaults =
                [] {
                    ModelConfig config = as_llama({.layers = 32,
                                                   .heads = 32,
                                                   .width = 3072,
                                                   .hidden = 8192,
                                                   .context = 4096,
                                                   .vocabulary = 32064,
                                                   .norm_epsilon = 1e-5});
                    config.rope_scaling.original_context = 4096;
                    return config;
                },
            .map = map_phi3,
            .other_members = {{"attention_dropout", harmless},
                              {"resid_pdrop", harmless},
                              {"embd_pdrop", harmless},
                              {"attention_bias", refused, "[false]"},
                              {"full_attn_mod", refused, "[1]"},
                              {"interpolate_factor", refused, "[1]"},
                              {"lm_head_bias", refused, "[false]"},
                              {"mlp_bias", refused, "[false]"}},
            .tensors = tensors,
            .gguf = {.architecture = "phi3",
                     .fused = true,
                     .check = [](const ModelConfig& c, std::string_view source) {
                         refuse_windows(c, "phi3", source);
                         refuse_head_width(c, "phi3", source);
                     }}};
}

}  // namespace gradtile
