// Phi-3 (Abdin et al. 2024) and Phi-4-mini (Abouelenin et al. 2025).
#include <gradtile/core/check.h>
#include <gradtile/tools/formats/families/decoder_members.h>

namespace gradtile {
namespace {

using enum MemberMeaning;

void map_phi3(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    map_llama_members(m, c, training);
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

/// The code in the folders of Phi-3 and Phi-4-mini, for which transformers has its own, which it prefers. The
/// tokenizer that Phi-4-mini names is the one in its folder.
constexpr std::string_view published_code =
    R"([{"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
        {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
         "AutoTokenizer": "Xenova/gpt-4o"}])";

}  // namespace

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
                    return as_llama({.layers = 32,
                                     .heads = 32,
                                     .width = 3072,
                                     .hidden = 8192,
                                     .context = 4096,
                                     .vocabulary = 32064,
                                     .rope_scaling = {.original_context = 4096},
                                     .norm_epsilon = 1e-5});
                },
            .map = map_phi3,
            .other_members = {{"attention_bias", refused, "[false]"},
                              {"auto_map", refused, published_code},
                              {"full_attn_mod", refused, "[1]"},
                              {"interpolate_factor", refused, "[1]"},
                              {"lm_head_bias", refused, "[false]"},
                              {"mlp_bias", refused, "[false]"}},
            .tensors = tensors,
            .gguf = {.architecture = "phi3",
                     .fused = true,
                     .check = [](const ModelConfig& c, const GgufTarget& target) {
                         refuse_windows(c, target);
                         refuse_head_width(c, target);
                     }}};
}

}  // namespace gradtile
