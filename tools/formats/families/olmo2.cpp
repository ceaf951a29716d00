// OLMo 2 (OLMo Team 2024).
#include <gradtile/tools/formats/families/decoder_members.h>

namespace gradtile {
namespace {

using enum MemberMeaning;

void map_olmo2(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_llama_members(m, c, training);
    map_rope(m, c);
}

}  // namespace

ModelFamily olmo2_family() {
    return {.type = "olmo2",
            .architecture = "Olmo2ForCausalLM",
            .models = "OLMo 2",
            .defaults =
                [] {
                    return as_llama({.layers = 32,
                                     .heads = 32,
                                     .width = 4096,
                                     .hidden = 11008,
                                     .context = 2048,
                                     .vocabulary = 50304,
                                     .block = BlockKind::output_norm,
                                     .norm_epsilon = 1e-5,
                                     .qk_norm = true,
                                     .qk_norm_kind = QkNorm::projection});
                },
            .map = map_olmo2,
            .other_members = {{"attention_bias", refused, "[false]"},
                              {"pretraining_tp", harmless},
                              {"partial_rotary_factor", refused, "[1]"}},
            .tensors = tensors_with_post_norms(),
            .gguf = {.architecture = "olmo2", .check = [](const ModelConfig& c, const GgufTarget& target) {
                         refuse_head_width(c, target);
                         refuse_tied_head(c, target);
                     }}};
}

}  // namespace gradtile
