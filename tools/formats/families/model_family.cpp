#include <gradtile/tools/formats/families/model_family.h>

#include <algorithm>
#include <array>

namespace gradtile {

std::span<const ModelFamily> model_families() {
    static const std::array families{gpt2_family(),   llama_family(),    mistral_family(), qwen2_family(),
                                     qwen3_family(),  smollm3_family(),  olmo2_family(),   gemma2_family(),
                                     gemma3_family(), gpt_neox_family(), phi3_family()};
    return families;
}

const ModelFamily* find_family(std::string_view type) {
    const auto families = model_families();
    const auto found = std::ranges::find(families, type, &ModelFamily::type);
    return found == families.end() ? nullptr : &*found;
}

std::vector<std::string_view> mapped_members(const ModelFamily& family) {
    const JsonValue nothing = JsonValue::object();
    ConfigMembers members(nothing, family.type);
    ModelConfig config = family.defaults();
    family.map(members, config, {});
    return members.names();
}

TensorNames gguf_tensors(const GgufFamily& gguf) {
    const RowOrder order = gguf.qk_order;
    const ModuleNames qkv = gguf.fused ? ModuleNames{"attn.qkv", {"attn_qkv"}, order}
                                       : ModuleNames{"attn.qkv", {"attn_q", "attn_k", "attn_v"}, order};
    const ModuleNames gate_up = gguf.fused ? ModuleNames{"mlp.gate_up", {"ffn_up"}}
                                           : ModuleNames{"mlp.gate_up", {"ffn_gate", "ffn_up"}};
    return {"blk.",
            {{"ln_1", {"attn_norm"}},
             {"ln_2", {"ffn_norm"}},
             {"norm_1", {"attn_norm"}},
             {"norm_2", {"ffn_norm"}},
             {"norm_post_1", {"post_attention_norm"}},
             {"norm_post_2", {"post_ffw_norm"}},
             qkv,
             {"attn.q_norm", {"attn_q_norm"}},
             {"attn.k_norm", {"attn_k_norm"}},
             {"attn.proj", {"attn_output"}},
             {"mlp.fc", {"ffn_up"}},
             {"mlp.proj", {"ffn_down"}},
             gate_up,
             {"mlp.down", {"ffn_down"}}},
            {{"wte", {"token_embd"}},
             {"wpe", {"position_embd"}},
             {"ln_f", {"output_norm"}},
             {"norm_f", {"output_norm"}},
             {"head", {"output"}}}};
}

}  // namespace gradtile
