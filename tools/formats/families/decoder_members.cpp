#include <gradtile/tools/formats/families/decoder_members.h>

#include <gradtile/core/check.h>

namespace gradtile {

void map_llama_sizes(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    m.map_size("num_hidden_layers", c.layers);
    m.map_size("num_attention_heads", c.heads);
    m.map_null("num_key_value_heads", c.kv_heads, std::int64_t{0});
    m.map_size("hidden_size", c.width);
    m.map("intermediate_size", c.hidden);
    m.map_size("max_position_embeddings", c.context);
    m.map_size("vocab_size", c.vocabulary);
    m.map("rms_norm_eps", c.norm_epsilon);
    m.map("tie_word_embeddings", c.tied_head);
    m.write("attention_dropout", training.attention_dropout);
}

void map_head_dim(ConfigMembers& m, ModelConfig& c, HeadDim written) {
    const std::int64_t usual = c.heads > 0 && c.width % c.heads == 0 ? c.width / c.heads : 0;
    if (m.reads() || written == HeadDim::written || c.head_width != usual)
        m.map_null("head_dim", c.head_width, std::int64_t{0});
    if (m.reads() && c.head_width == usual) c.head_width = 0;
}

void map_llama_members(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training, HeadDim written) {
    map_llama_sizes(m, c, training);
    m.map<Activation>("hidden_act", c.activation, {{"silu", Activation::swiglu}});
    map_head_dim(m, c, written);
}

void map_biases(ConfigMembers& m, ModelConfig& c) {
    bool mlp = c.bias;
    m.map("attention_bias", c.bias);
    m.map("mlp_bias", mlp);
    check(c.bias == mlp, m.source(),
          ": attention_bias and mlp_bias differ; expected biases in all linear layers or in none");
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

TensorNames tensors_with_post_norms() {
    TensorNames tensors = llama_tensors();
    tensors.blocks[1] = {"norm_2", {"pre_feedforward_layernorm"}};
    tensors.blocks.push_back({"norm_post_1", {"post_attention_layernorm"}});
    tensors.blocks.push_back({"norm_post_2", {"post_feedforward_layernorm"}});
    return tensors;
}

std::int64_t pattern_of(const std::vector<bool>& is_special, const ConfigMembers& m,
                        std::string_view member) {
    std::size_t pattern = 0;
    while (pattern < is_special.size() && !is_special[pattern]) ++pattern;
    if (pattern == is_special.size()) return 0;
    ++pattern;
    for (std::size_t i = 0; i < is_special.size(); ++i)
        check(is_special[i] == ((i + 1) % pattern == 0), m.source(), ": ", member, ": layer ", i + 1,
              " breaks the pattern of the first ", pattern,
              "; expected that every N-th layer is the exception");
    return static_cast<std::int64_t>(pattern);
}

void map_layer_types(ConfigMembers& m, ModelConfig& c) {
    constexpr const char *name = "layer_types", *windowed = "sliding_attention", *full = "full_attention";
    if (!m.reads()) {
        JsonValue::Array types;
        for (std::int64_t layer = 0; layer < c.layers; ++layer)
            types.emplace_back(c.window_of(layer) != 0 ? windowed : full);
        return m.write(name, types);
    }
    const JsonValue* const types = m.value_of(name);
    if (!types) return;
    check(types->is_array() && std::cmp_equal(types->size(), c.layers), m.source(), ": ", name, ": ",
          json_excerpt(*types), "; expected a list of ", c.layers, " types, one for each layer");
    std::vector<bool> is_full;
    for (const JsonValue& type : types->elements()) {
        check(type == full || type == windowed, m.source(), ": ", name, ": ", json_excerpt(type),
              " is not supported; expected ", windowed, " or ", full);
        is_full.push_back(type == full);
    }
    c.window_pattern = pattern_of(is_full, m, name);
    // Every layer sees all keys.
    if (c.window_pattern == 1) c.window = c.window_pattern = 0;
    check(c.window_pattern == 1 || c.window != 0 || c.layers == 0 || is_full.front(), m.source(), ": ", name,
          ": \"", windowed, "\", but no sliding_window; expected a window");
}

ModelConfig llama_defaults(ModelConfig sizes) {
    sizes.norm_epsilon = 1e-6;
    return as_llama(sizes);
}

// What llama.cpp's architectures do not compute.

void refuse_windows(const ModelConfig& c, const GgufTarget& target) {
    target.require(c.window == 0 || c.window >= c.context, "window", c.window, "none");
}
void refuse_head_width(const ModelConfig& c, const GgufTarget& target) {
    target.require(c.width % c.heads == 0 && c.head_dim() == c.width / c.heads, "head-width", c.head_dim(),
                   "width / heads");
}
void refuse_tied_head(const ModelConfig& c, const GgufTarget& target) {
    target.require(!c.tied_head, "tied-head", "true", "a head of its own");
}
void refuse_biases(const ModelConfig& c, const GgufTarget& target) {
    target.require(!c.bias, "bias", "true", "none");
}

}  // namespace gradtile
