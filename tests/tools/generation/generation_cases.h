#pragma once
/// Small models: every combination of activation, norm and position kind, and every option that generation
/// must respect.
#include <array>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/generation/next_token.h>
#include <gradtile/train/model/language_model.h>

#include <support/small_models.h>

namespace gradtile::test {

struct GenerationCase {
    std::string name;
    std::function<void(ModelConfig&)> change;
    AdapterOptions adapters = {};

    friend void PrintTo(const GenerationCase& c, std::ostream* out) { *out << c.name; }
};

/// The logits after one text, in slot 0.
inline std::vector<double> logits_after(NextToken& next, std::span<const std::int32_t> text) {
    return std::move(next.logits(std::array{NextToken::Text{0, text}}).front());
}

/// Returns a name with letters, digits and underscores only, as GoogleTest requires.
inline std::string test_name(std::string name) {
    std::ranges::replace(name, '-', '_');
    return name;
}

/// The family's model with these sizes.
inline ModelConfig family_named(std::string_view name, const ModelConfig& sizes) {
    for (const FamilyModel& family : family_models(sizes))
        if (family.name == name) return family.config;
    throw Error(concat("no family ", name));
}

/// The first case is a model with the default settings.
inline const std::vector<GenerationCase>& generation_cases() {
    static const std::vector<GenerationCase> cases = [] {
        std::vector<GenerationCase> all{
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
            {"attention_options",
             [](ModelConfig& c) {
                 c.positions = Positions::alibi;
                 c.kv_heads = 2;
                 c.window = 5;
                 c.window_pattern = 2;
                 c.softcap = 3;
                 c.sinks = true;
             }},
            {"adapters", [](ModelConfig&) {}, {.rank = 2}},
            {"attention_adapters", [](ModelConfig&) {}, {.rank = 2, .alpha = 3, .on = "attn"}},
            {"odd_context", [](ModelConfig& c) { c.context = 11; }},
            {"one_token", [](ModelConfig& c) { c.context = 1; }},
        };
        std::vector<GenerationCase> combinations;
        for (const auto& [activation, activation_name] : EnumNames<Activation>::names)
            for (const auto& [norm, norm_name] : EnumNames<Norm>::names)
                for (const auto& [positions, positions_name] : EnumNames<Positions>::names)
                    combinations.push_back(
                        {test_name(concat(activation_name, '_', norm_name, '_', positions_name)),
                         [a = activation, n = norm, p = positions](ModelConfig& c) {
                             c.activation = a;
                             c.norm = n;
                             c.positions = p;
                         }});
        all.insert(all.begin(), combinations.begin(), combinations.end());
        for (const FamilyModel& family : family_models({}))
            all.push_back({family.name, [name = family.name](ModelConfig& c) { c = family_named(name, c); }});
        return all;
    }();
    return cases;
}

/// The model's stores: with adapters two, else one.
inline std::vector<ParameterStore*> stores_of(LanguageModel& model) {
    if (!model.has_adapters()) return {&model.parameters};
    return {&model.parameters, &model.frozen};
}

/// A model with a 40-token vocabulary and no tokenizer. Its weights are larger than initial ones, so that the
/// logits depend on every token. Its training options have no effect on generation.
inline std::unique_ptr<LanguageModel> generation_model(const GenerationCase& chosen, DType dtype,
                                                       const Context& ctx = Context(Device::cpu(), 2)) {
    ModelConfig config{.layers = 2, .heads = 4, .width = 32, .context = 12, .vocabulary = 40};
    chosen.change(config);
    const TrainingOptions training{
        .dropout = 0.5, .attention_dropout = 0.5, .recompute = Recompute::block, .deterministic = true};
    auto made = std::make_unique<LanguageModel>(ctx, config, dtype, std::nullopt, FlatOptions{}, training,
                                                chosen.adapters);
    for (ParameterStore* store : stores_of(*made)) {
        store->initialize(made->ctx, Seed{5});
        for (const Parameter& parameter : store->parameters()) {
            if (parameter.shape().rank() == 2) axpy(made->ctx, parameter.value(), 7.0, parameter.value());
            if (parameter.name().ends_with(".x0") || parameter.name().ends_with(".lambda"))
                fill(made->ctx, parameter.value(), 0.75);   // initially zero
            if (parameter.name().ends_with("gate.weight"))  // initially zero
                fill_normal(made->ctx, parameter.value(), 0.0, 0.5, Seed{7});
            if (parameter.name().ends_with(".lora_b"))  // initially zero
                fill_normal(made->ctx, parameter.value(), 0.0, 0.1, Seed{6});
        }
    }
    for (const TransformerBlock& block : made->transformer.blocks)
        if (block.attn.sinks.defined()) fill(made->ctx, block.attn.sinks.value(), 1.5);
    return made;
}

}  // namespace gradtile::test
