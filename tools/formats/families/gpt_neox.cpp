// GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023).
#include <gradtile/tools/formats/families/decoder_members.h>

namespace gradtile {
namespace {

using enum MemberMeaning;

void map_gpt_neox(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    m.map_size("num_hidden_layers", c.layers);
    m.map_size("num_attention_heads", c.heads);
    m.map_size("hidden_size", c.width);
    m.map("intermediate_size", c.hidden);
    m.map_size("max_position_embeddings", c.context);
    m.map_size("vocab_size", c.vocabulary);
    m.map<Activation>("hidden_act", c.activation,
                      {{"gelu", Activation::gelu},
                       {"gelu_new", Activation::gelu_tanh},
                       {"gelu_pytorch_tanh", Activation::gelu_tanh},
                       {"relu2", Activation::relu2}});
    m.map("layer_norm_eps", c.norm_epsilon);
    m.map("tie_word_embeddings", c.tied_head);
    bool is_parallel = c.block == BlockKind::parallel;
    m.map("use_parallel_residual", is_parallel);
    if (m.reads()) c.block = is_parallel ? BlockKind::parallel : BlockKind::pre_norm;
    map_rope(m, c, {.base = "rotary_emb_base", .rotated_part = "rotary_pct", .default_part = 0.25});
    m.write("attention_dropout", training.attention_dropout);
    m.write("hidden_dropout", training.dropout);
}

}  // namespace

ModelFamily gpt_neox_family() {
    return {.type = "gpt_neox",
            .architecture = "GPTNeoXForCausalLM",
            .models = "Pythia, GPT-NeoX-20B",
            .defaults =
                [] {
                    return ModelConfig{.layers = 44,
                                       .heads = 64,
                                       .width = 6144,
                                       .hidden = 24576,
                                       .context = 2048,
                                       .vocabulary = 50432,
                                       .block = BlockKind::parallel,
                                       .activation = Activation::gelu,
                                       .positions = Positions::rope,
                                       .tied_head = false};
                },
            .map = map_gpt_neox,
            .other_members = {{"classifier_dropout", harmless},
                              {"attention_bias", refused, "[true]"},
                              {"partial_rotary_factor", refused},
                              {"rope_theta", refused}},
            .tensors = {"gpt_neox.layers.",
                        {{"ln_1", {"input_layernorm"}},
                         {"ln_2", {"post_attention_layernorm"}},
                         {"attn.qkv", {"attention.query_key_value"}, RowOrder::by_head},
                         {"attn.proj", {"attention.dense"}},
                         {"mlp.fc", {"mlp.dense_h_to_4h"}},
                         {"mlp.proj", {"mlp.dense_4h_to_h"}}},
                        {{"wte", {"gpt_neox.embed_in"}},
                         {"ln_f", {"gpt_neox.final_layer_norm"}},
                         {"head", {"embed_out"}}}},
            .gguf = {.architecture = "gptneox", .fused = true, .check = refuse_tied_head}};
}

}  // namespace gradtile
