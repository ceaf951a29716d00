#include <gradtile/tools/bench/step_flags.h>

#include <cstdio>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/train/config/refused_combinations.h>

namespace gradtile::cli {
namespace {

/// The step with the preset and the settings that were given.
Step step_of(const std::string& given_preset, const JsonValue& settings) {
    const auto apply = [&](TrainConfig& config) {
        rethrow_as_usage_error([&] { apply_json(config, settings, "command line"); });
    };
    TrainConfig requested;
    apply(requested);
    const bool gpu = resolve_device(requested.device).is_cuda();
    const std::string name = !given_preset.empty() ? given_preset
                             : gpu                 ? "gpt2-124m"
                                                   : "shakespeare-char-cpu";
    TrainConfig config = rethrow_as_usage_error([&] { return preset(name); });
    config.batch = gpu && given_preset.empty() ? 64 : config.micro_batch_size();
    config.micro_batch = 0;
    if (gpu) config.dtype = TrainDType::bf16;
    apply(config);
    if (config.model.vocabulary == 0) config.model.vocabulary = vocabulary_of_characters;
    rethrow_as_usage_error([&] {
        validate(config);
        check_used(config, settings);
        check_device(config, resolve_device(config.device));
    });
    return {name, config};
}

}  // namespace

StepFlags::StepFlags(Command& command, bool SettingUsers::*benchmark)
    : settings_(command, benchmark, FlagTakes::list) {
    std::string presets = "settings to start from:";
    for (const std::string& name : preset_names()) presets += " " + name;
    presets += " (default: gpt2-124m on a GPU, else shakespeare-char-cpu); on a GPU in bf16";
    command.add_value("--preset", preset_, presets);
    command.add_value("--runs", runs_, "number of timings; their median is reported");
    command.add_switch("--json", json_, "print one JSON object per row");
}

std::vector<Step> StepFlags::steps() const {
    std::vector<Step> steps;
    for (const JsonValue& settings : settings_.combinations()) steps.push_back(step_of(preset_, settings));
    return steps;
}

Sampling StepFlags::sampling() const {
    check_flag("--runs", runs_, runs_range);
    return {.runs = runs_};
}

Context context_of(const TrainConfig& config) {
    return Context(resolve_device(config.device), static_cast<int>(config.threads))
        .with_tf32(config.tf32)
        .with_deterministic(config.training.deterministic);
}

std::string shape_of(const ModelConfig& config) {
    ParameterStore parameters;
    const Transformer model(config, parameters);
    const std::string key_value_heads =
        config.key_value_heads() == config.heads ? "" : concat(" over ", config.key_value_heads());
    char millions[40];
    std::snprintf(millions, sizeof millions, "%.1fM", 1e-6 * static_cast<double>(parameters.count()));
    return concat(config.layers, " layers x ", config.width, ", ", config.heads, " heads", key_value_heads,
                  ", MLP ", config.hidden_width(), ", context ", config.context, ", vocabulary ",
                  config.vocabulary, ", ", millions, " parameters");
}

std::string title_of(const Step& step, const Context& ctx) {
    const std::string where =
        ctx.device().is_cpu() ? concat("cpu with ", ctx.threads().size(), " threads, ", cpu_matrix_library())
                              : concat(ctx.device());
    return concat(step.preset, ", ", step.config.micro_batch_size(), " x ", step.config.model.context,
                  " tokens at once, ", step.dtype(), " on ", where);
}

}  // namespace gradtile::cli
