// GPT-2 (Radford et al. 2019).
#include <gradtile/tools/formats/families/model_family.h>

namespace gradtile {
namespace {

using enum MemberMeaning;

void map_gpt2(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    m.map_size({"n_layer", "num_hidden_layers"}, c.layers);
    m.map_size({"n_head", "num_attention_heads"}, c.heads);
    m.map_size({"n_embd", "hidden_size"}, c.width);
    m.map("n_inner", c.hidden);
    m.map_size({"n_positions", "max_position_embeddings"}, c.context);
    m.map_size("vocab_size", c.vocabulary);
    m.map<Activation>("activation_function", c.activation,
                      {{"gelu_new", Activation::gelu_tanh},
                       {"gelu_pytorch_tanh", Activation::gelu_tanh},
                       {"gelu", Activation::gelu},
                       {"relu2", Activation::relu2}});
    m.map("layer_norm_epsilon", c.norm_epsilon);
    m.map("tie_word_embeddings", c.tied_head);
    m.write("n_ctx", c.context);
    m.write("attn_pdrop", training.attention_dropout);
    m.write("embd_pdrop", training.dropout);
    m.write("resid_pdrop", training.dropout);
}

}  // namespace

ModelFamily gpt2_family() {
    return {.type = "gpt2",
            .architecture = "GPT2LMHeadModel",
            .models = "GPT-2, DistilGPT2, DialoGPT",
            .defaults =
                [] {
                    return ModelConfig{
                        .layers = 12, .heads = 12, .width = 768, .context = 1024, .vocabulary = 50257};
                },
            .map = map_gpt2,
            .other_members = {{"n_special", harmless},
                              {"predict_special_tokens", harmless},
                              {"classifier_dropout", harmless},
                              {"hidden_dropout", harmless},
                              {"reorder_and_upcast_attn", harmless},
                              {"summary_activation", harmless},
                              {"summary_first_dropout", harmless},
                              {"summary_last_dropout", harmless},
                              {"summary_proj_to_labels", harmless},
                              {"summary_type", harmless},
                              {"summary_use_proj", harmless},
                              {"scale_attn_weights", refused, "[true]"},
                              {"scale_attn_by_inverse_layer_idx", refused, "[false]"}},
            .tensors = {"transformer.h.",
                        {{"ln_1", {"ln_1"}},
                         {"ln_2", {"ln_2"}},
                         {"attn.qkv", {"attn.c_attn"}, RowOrder::transposed},
                         {"attn.proj", {"attn.c_proj"}, RowOrder::transposed},
                         {"mlp.fc", {"mlp.c_fc"}, RowOrder::transposed},
                         {"mlp.proj", {"mlp.c_proj"}, RowOrder::transposed}},
                        {{"wte", {"transformer.wte"}},
                         {"wpe", {"transformer.wpe"}},
                         {"ln_f", {"transformer.ln_f"}},
                         {"head", {"lm_head"}}}},
            .gguf = {.architecture = "gpt2",
                     .fused = true,
                     .check = [](const ModelConfig& c, const GgufTarget& target) {
                         target.require(c.activation == Activation::gelu_tanh, "activation",
                                        name_of(c.activation), "gelu-tanh");
                     }}};
}

}  // namespace gradtile
