// Gemma 2 and the text models of Gemma 3 (Gemma Team 2024, 2025).

#include <gradtile/core/check.h>
#include <gradtile/tools/formats/families/decoder_members.h>

namespace gradtile {
namespace {

using enum MemberMeaning;

/// What Gemma 2 and 3 have in common.
ModelConfig gemma_defaults() {
    ModelConfig config = llama_defaults({.layers = 26,
                                         .heads = 8,
                                         .kv_heads = 4,
                                         .width = 2304,
                                         .head_width = 256,
                                         .hidden = 9216,
                                         .block = BlockKind::sandwich_norm,
                                         .norm_offset = true,
                                         .scaled_embedding = true,
                                         .query_scalar = 256,
                                         .window = 4096});
    config.activation = Activation::geglu_tanh;
    config.tied_head = true;
    return config;
}

void map_gemma(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_llama_sizes(m, c, training);
    m.map<Activation>("hidden_activation", c.activation, {{"gelu_pytorch_tanh", Activation::geglu_tanh}});
    map_head_dim(m, c, HeadDim::written);
    m.map("query_pre_attn_scalar", c.query_scalar);
    m.map_null("final_logit_softcapping", c.logit_softcap.limit, 0.0);
    m.map_null("sliding_window", c.window, std::int64_t{0});
    check(c.heads == 0 || c.width % c.heads == 0, m.source(), ": num_attention_heads: ", c.heads,
          " does not divide hidden_size ", c.width);
}

void map_gemma2(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_gemma(m, c, training);
    m.map_null("attn_logit_softcapping", c.softcap, 0.0);
    map_layer_types(m, c);
    map_rope(m, c);
}

void map_gemma3(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_gemma(m, c, training);
    if (m.reads()) m.map({"sliding_window_pattern", "_sliding_window_pattern"}, c.window_pattern);
    map_layer_types(m, c);
    map_window_rope(m, c);
}

std::vector<KnownMember> gemma_members() {
    return {// transformers computes hidden_activation.
            {"hidden_act", harmless},
            {"cache_implementation", harmless},
            {"attention_bias", refused, "[false]"},
            {"use_bidirectional_attention", refused, "[false]"},
            {"partial_rotary_factor", refused, "[1]"}};
}

/// llama.cpp knows query_pre_attn_scalar by the number of layers.
void check_query_scalar(const ModelConfig& c, std::int64_t layers_of_27b, const GgufTarget& target) {
    const std::int64_t expected = c.layers == layers_of_27b ? c.width / c.heads : c.head_dim();
    const double own = c.query_scalar == 0 ? static_cast<double>(c.head_dim()) : c.query_scalar;
    target.require(own == static_cast<double>(expected), "query-scalar", own, expected, " for ", c.layers,
                   " layers");
}

}  // namespace

ModelFamily gemma2_family() {
    std::vector<KnownMember> members = gemma_members();
    members.push_back({"sliding_window_size", harmless});  // of the files of 9B, beside sliding_window
    return {.type = "gemma2",
            .architecture = "Gemma2ForCausalLM",
            .models = "Gemma 2",
            .defaults =
                [] {
                    ModelConfig config = gemma_defaults();
                    config.context = 8192;
                    config.vocabulary = 256000;
                    config.window_pattern = 2;
                    config.softcap = 50;
                    config.logit_softcap.limit = 30;
                    return config;
                },
            .map = map_gemma2,
            .other_members = members,
            .tensors = tensors_with_post_norms(),
            .gguf = {.architecture = "gemma2", .check = [](const ModelConfig& c, const GgufTarget& target) {
                         check_query_scalar(c, 46, target);
                         target.require(c.softcap != 0 && c.logit_softcap.limit != 0, "softcap", 0,
                                        "two softcaps");
                         target.require(c.tied_head, "tied-head", "false", "true");
                     }}};
}

ModelFamily gemma3_family() {
    std::vector<KnownMember> members = gemma_members();
    members.push_back({"attn_logit_softcapping", refused});
    return {.type = "gemma3_text",
            .architecture = "Gemma3ForCausalLM",
            .models = "Gemma 3 270M and 1B, and the text part of the larger ones",
            .defaults =
                [] {
                    ModelConfig config = gemma_defaults();
                    config.context = 131072;
                    config.vocabulary = 262208;
                    config.window_pattern = 6;
                    config.qk_norm = true;
                    config.rope_base = 1e6;
                    config.window_rope_base = 1e4;
                    return config;
                },
            .map = map_gemma3,
            .other_members = members,
            .tensors = tensors_with_post_norms(),
            .gguf = {.architecture = "gemma3", .check = [](const ModelConfig& c, const GgufTarget& target) {
                         check_query_scalar(c, 62, target);
                     }}};
}

}  // namespace gradtile
