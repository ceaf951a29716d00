#pragma once
/// Small models with every option that generation must respect.
#include <memory>
#include <ostream>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/language_model.h>

namespace gradtile::test {

struct GenerationCase {
    const char* name;
    void (*change)(ModelConfig&);

    friend void PrintTo(const GenerationCase& c, std::ostream* out) { *out << c.name; }
};

inline const GenerationCase generation_cases[] = {
    {"learned", [](ModelConfig&) {}},
    {"rope", [](ModelConfig& c) { c.positions = Positions::rope; }},
    {"grouped", [](ModelConfig& c) { c.kv_heads = 1; }},
    {"llama",
     [](ModelConfig& c) {
         c = as_llama(c);
         c.kv_heads = 2;
     }},
    {"qk_norm",
     [](ModelConfig& c) {
         c.positions = Positions::rope;
         c.qk_norm = true;
     }},
    {"window",
     [](ModelConfig& c) {
         c.positions = Positions::rope;
         c.window = 4;
     }},
    {"alibi", [](ModelConfig& c) { c.positions = Positions::alibi; }},
    {"attention_options",
     [](ModelConfig& c) {
         c.positions = Positions::alibi;
         c.kv_heads = 2;
         c.window = 5;
         c.window_pattern = 2;
         c.softcap = 3;
         c.sinks = true;
         c.attention_dropout = 0.5;  // has no effect
     }},
    {"odd_context", [](ModelConfig& c) { c.context = 11; }},
    {"one_token", [](ModelConfig& c) { c.context = 1; }},
};

/// A model of 40 tokens without a tokenizer. Its weights are larger than initial ones, so that the logits
/// depend on every token.
inline std::unique_ptr<LanguageModel> generation_model(const GenerationCase& chosen, DType dtype,
                                                       const Context& ctx = Context(Device::cpu(), 2)) {
    ModelConfig config{.layers = 2, .heads = 4, .width = 32, .context = 12, .vocabulary = 40};
    chosen.change(config);
    auto made = std::make_unique<LanguageModel>(ctx, config, dtype, std::nullopt);
    made->parameters.initialize(made->ctx, Seed{5});
    for (const Parameter& parameter : made->parameters.parameters())
        if (parameter.shape().rank() == 2) axpy(made->ctx, parameter.value(), 7.0, parameter.value());
    for (const TransformerBlock& block : made->transformer.blocks)
        if (block.attn.sinks.defined()) fill(made->ctx, block.attn.sinks.value(), 1.5);
    return made;
}

}  // namespace gradtile::test
