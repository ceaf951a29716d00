// Llama (Touvron et al. 2023) and Mistral (Jiang et al. 2023).
#include <gradtile/core/check.h>
#include <gradtile/tools/formats/families/decoder_members.h>

namespace gradtile {
namespace {

using enum MemberMeaning;

void map_llama(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_llama_members(m, c, training, HeadDim::written);
    map_biases(m, c);
    map_rope(m, c);
    check(c.heads == 0 || c.width % c.heads == 0, m.source(), ": num_attention_heads: ", c.heads,
          " does not divide hidden_size ", c.width);
}

void map_mistral(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_llama_members(m, c, training, HeadDim::written);
    m.map_null("sliding_window", c.window, std::int64_t{0});
    map_rope(m, c);
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
            .other_members = {{"is_llama_config", harmless},
                              {"max_sequence_length", harmless},
                              // Sums in another order.
                              {"pretraining_tp", harmless},
                              {"partial_rotary_factor", refused, "[1]"},
                              {"rope_interleaved", refused, "[false]"}},
            .tensors = llama_tensors(),
            .gguf = {.architecture = "llama",
                     .qk_order = RowOrder::pairs,
                     .check = [](const ModelConfig& c, const GgufTarget& target) {
                         refuse_biases(c, target);
                         refuse_windows(c, target);
                     }}};
}

ModelFamily mistral_family() {
    ModelFamily family = llama_family();
    family.type = "mistral";
    family.architecture = "MistralForCausalLM";
    family.models = "Mistral 7B, Mistral Nemo, Zephyr";
    family.defaults = [] {
        return llama_defaults({.layers = 32,
                               .heads = 32,
                               .kv_heads = 8,
                               .width = 4096,
                               .hidden = 14336,
                               .context = 131072,
                               .vocabulary = 32000,
                               .window = 4096});
    };
    family.map = map_mistral;
    family.other_members = {{"partial_rotary_factor", refused, "[1]"}};
    return family;
}

}  // namespace gradtile
