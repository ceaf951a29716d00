// SmolLM3 (Bakouch et al. 2025): Llama without rotation in every fourth layer.
#include <gradtile/core/check.h>
#include <gradtile/tools/formats/families/decoder_members.h>

namespace gradtile {
namespace {

using enum MemberMeaning;

void map_smollm3(ConfigMembers& m, ModelConfig& c, const TrainingOptions& training) {
    constexpr const char* rotating_layers = "no_rope_layers";  // 1: the layer rotates
    map_llama_members(m, c, training);
    map_biases(m, c);
    m.map("no_rope_layer_interval", c.rope_pattern);
    if (const JsonValue* const list = m.value_of(rotating_layers)) {
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

}  // namespace

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
            .other_members = {{"sliding_window", harmless},  // without use_sliding_window
                              {"use_sliding_window", refused, "[false]"},
                              {"max_window_layers", harmless},
                              {"pretraining_tp", harmless},
                              {"partial_rotary_factor", refused, "[1]"}},
            .tensors = llama_tensors(),
            .gguf = {.architecture = "smollm3",
                     .qk_order = RowOrder::pairs,
                     .check = [](const ModelConfig& c, const GgufTarget& target) {
                         refuse_biases(c, target);
                         target.require(c.rope_pattern == 4, "rope-pattern", c.rope_pattern, 4);
                     }}};
}

}  // namespace gradtile
