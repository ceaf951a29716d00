#include <gradtile/tools/bench/step_flags.h>

#include <algorithm>
#include <cstdio>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/tools/command_line/usage_error.h>

namespace gradtile::cli {
namespace {

constexpr std::string_view common_settings[] = {"heads",   "kv-heads",   "width",  "hidden",
                                                "context", "vocabulary", "device", "threads"};

/// The vocabulary size for presets that set none, because a run computes it from the text: the character
/// count in tiny Shakespeare.
constexpr std::int64_t characters = 65;

bool contains(const auto& names, std::string_view name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

void DTypesFlag::add_to(Command& command, const std::string& shown_default) {
    command.add_value<std::vector<TrainDType>>(
        "--dtype",
        concat("dtype; a list such as f32,bf16 gives rows for each (default: ", shown_default, ')'),
        [this](const auto& list) { given_ = list; });
}

StepFlags::StepFlags(Command& command, std::initializer_list<std::string_view> settings)
    : settings_(command, [&](std::string_view name) {
          return contains(common_settings, name) || contains(settings, name);
      }) {
    std::string presets = "settings to start from:";
    for (const std::string& name : preset_names()) presets += " " + name;
    presets += " (default: gpt2-124m on a GPU, else shakespeare-char-cpu)";
    command.add_value<std::string>("--preset", presets, [this](const std::string& name) { preset_ = name; });
    dtypes_.add_to(command, "bf16 on a GPU, else the preset's");
    command.add_value("--runs", runs_, "number of timings; their median is reported");
    command.add_switch("--json", json_, "print one JSON object per row");
}

Step StepFlags::step(std::optional<std::int64_t> batch) const {
    TrainConfig requested;
    settings_.apply(requested);
    const bool gpu = resolve_device(requested.device).is_cuda();
    const std::string name = !preset_.empty() ? preset_ : gpu ? "gpt2-124m" : "shakespeare-char-cpu";
    TrainConfig config = rethrow_as_usage_error([&] { return preset(name); });
    config.batch = batch.value_or(gpu && preset_.empty() ? 64 : config.micro_batch_size());
    config.micro_batch = 0;
    if (gpu) config.dtype = TrainDType::bf16;
    settings_.apply(config);
    if (config.model.vocabulary == 0) config.model.vocabulary = characters;
    rethrow_as_usage_error([&] { validate(config); });
    return {name, config};
}

std::vector<Step> StepFlags::with_each_dtype(const Step& step) const {
    std::vector<Step> steps;
    for (const TrainDType dtype : dtypes_.values_or(step.config.dtype)) {
        steps.push_back(step);
        steps.back().config.dtype = dtype;
        rethrow_as_usage_error([&] { validate(steps.back().config); });
    }
    return steps;
}

Sampling StepFlags::sampling() const {
    check_flag("--runs", runs_, runs_range);
    return {.runs = runs_};
}

bool StepFlags::given(std::string_view setting) const {
    return contains(settings_.given(), setting);
}

Context context_of(const TrainConfig& config) {
    return Context(resolve_device(config.device), static_cast<int>(config.threads))
        .with_tf32(config.tf32)
        .with_deterministic(config.model.deterministic);
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
