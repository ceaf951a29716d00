#include <gradtile/tools/formats/weight_names.h>

#include <algorithm>
#include <span>

#include <gradtile/layers/transformer/transformer.h>

namespace gradtile {
namespace {

/// A module's name in this project ("attn.qkv"), and the names for the modules in another project that hold
/// the same parameters ({"self_attn.q_proj", ...}).
struct ModuleNames {
    std::string_view own;
    std::vector<std::string_view> theirs;
    bool transposed = false;
};

struct LayoutNames {
    std::string_view block;           ///< the part before the block number in a name
    std::vector<ModuleNames> blocks;  ///< the modules of a block
    std::vector<ModuleNames> others;
};

const LayoutNames& names_of(WeightLayout layout) {
    static const LayoutNames huggingface_gpt2{"transformer.h.",
                                              {{"ln_1", {"ln_1"}},
                                               {"ln_2", {"ln_2"}},
                                               {"attn.qkv", {"attn.c_attn"}, true},
                                               {"attn.proj", {"attn.c_proj"}, true},
                                               {"mlp.fc", {"mlp.c_fc"}, true},
                                               {"mlp.proj", {"mlp.c_proj"}, true}},
                                              {{"wte", {"transformer.wte"}},
                                               {"wpe", {"transformer.wpe"}},
                                               {"ln_f", {"transformer.ln_f"}},
                                               {"head", {"lm_head"}}}};
    static const LayoutNames huggingface_llama{
        "model.layers.",
        {{"norm_1", {"input_layernorm"}},
         {"norm_2", {"post_attention_layernorm"}},
         {"attn.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
         {"attn.proj", {"self_attn.o_proj"}},
         {"mlp.gate_up", {"mlp.gate_proj", "mlp.up_proj"}},
         {"mlp.down", {"mlp.down_proj"}}},
        {{"wte", {"model.embed_tokens"}}, {"norm_f", {"model.norm"}}, {"head", {"lm_head"}}}};
    static const LayoutNames gguf_gpt2{"blk.",
                                       {{"ln_1", {"attn_norm"}},
                                        {"ln_2", {"ffn_norm"}},
                                        {"attn.qkv", {"attn_qkv"}},
                                        {"attn.proj", {"attn_output"}},
                                        {"mlp.fc", {"ffn_up"}},
                                        {"mlp.proj", {"ffn_down"}}},
                                       {{"wte", {"token_embd"}},
                                        {"wpe", {"position_embd"}},
                                        {"ln_f", {"output_norm"}},
                                        {"head", {"output"}}}};
    static const LayoutNames gguf_llama{
        "blk.",
        {{"norm_1", {"attn_norm"}},
         {"norm_2", {"ffn_norm"}},
         {"attn.qkv", {"attn_q", "attn_k", "attn_v"}},
         {"attn.proj", {"attn_output"}},
         {"mlp.gate_up", {"ffn_gate", "ffn_up"}},
         {"mlp.down", {"ffn_down"}}},
        {{"wte", {"token_embd"}}, {"norm_f", {"output_norm"}}, {"head", {"output"}}}};
    switch (layout) {
        case WeightLayout::huggingface_gpt2:
            return huggingface_gpt2;
        case WeightLayout::huggingface_llama:
            return huggingface_llama;
        case WeightLayout::gguf_gpt2:
            return gguf_gpt2;
        case WeightLayout::gguf_llama:
            return gguf_llama;
    }
    throw Error("weight_mappings: unknown layout");
}

const ModuleNames& module_named(std::span<const ModuleNames> modules, std::string_view own) {
    const auto found = std::ranges::find(modules, own, &ModuleNames::own);
    check(found != modules.end(), "weight_mappings: the layout has no '", own, "'");
    return *found;
}

/// Returns how many rows each part has. Only attention's packed matrix has parts of different sizes.
std::vector<std::int64_t> rows_of_parts(const ModelConfig& config, std::int64_t rows, std::size_t parts) {
    if (parts != 3) return std::vector(parts, rows / static_cast<std::int64_t>(parts));
    const std::int64_t query_rows = config.heads * config.head_dim();
    const std::int64_t key_rows = config.key_value_heads() * config.head_dim();
    return {query_rows, key_rows, key_rows};
}

WeightMapping mapping_of(WeightLayout layout, const ModelConfig& config, const std::string& parameter,
                         const Shape& shape) {
    const LayoutNames& names = names_of(layout);
    const std::size_t dot = parameter.rfind('.');
    const std::string suffix = parameter.substr(dot);  // ".weight" or ".bias"
    std::string module = parameter.substr(0, dot), prefix;
    const bool in_block = module.starts_with("h.");
    if (in_block) {
        const std::size_t end = module.find('.', 2) + 1;
        prefix = concat(names.block, module.substr(2, end - 2));
        module = module.substr(end);
    }
    const ModuleNames& theirs = module_named(in_block ? names.blocks : names.others, module);
    WeightMapping mapping{.parameter = parameter, .shape = shape};
    const auto rows = rows_of_parts(config, shape[0], theirs.theirs.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
        WeightPart part{.name = concat(prefix, theirs.theirs[i], suffix), .shape = shape};
        part.shape[0] = rows[i];
        part.transposed = theirs.transposed && shape.rank() == 2;
        if (part.transposed) std::swap(part.shape[0], part.shape[1]);
        // The third part is the value matrix. Values are not rotated.
        if (layout == WeightLayout::gguf_llama && rows.size() == 3 && i < 2)
            part.rotated = rows[i] / config.head_dim();
        mapping.parts.push_back(std::move(part));
    }
    return mapping;
}

}  // namespace

std::vector<WeightMapping> weight_mappings(WeightLayout layout, const ModelConfig& config) {
    ParameterStore parameters;
    const Transformer model(config, parameters);
    std::vector<WeightMapping> mappings;
    for (const Parameter& parameter : parameters.parameters())
        mappings.push_back(mapping_of(layout, config, parameter.name(), parameter.shape()));
    return mappings;
}

}  // namespace gradtile
