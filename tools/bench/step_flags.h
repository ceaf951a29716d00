#pragma once
/// The training step that a benchmark measures: a preset, modified by flags.
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/tools/bench/measure.h>
#include <gradtile/tools/command_line/setting_flags.h>

namespace gradtile::cli {

struct Step {
    std::string preset;
    TrainConfig config;
    /// Tokens per micro-batch.
    std::int64_t rows() const { return config.micro_batch_size() * config.model.context; }
    DType dtype() const { return storage_dtype(config.dtype); }
};

class StepFlags {
  public:
    /// Declares --preset, --runs, --json and the settings that the benchmark uses. The flags refer to this
    /// object, so it must live until the command line is parsed.
    StepFlags(Command& command, bool SettingUsers::*benchmark);

    /// A step for each combination of the flags' values, validated, with an existing device and a vocabulary.
    /// Defaults: on a GPU bfloat16 and, without --preset, gpt2-124m with 64 sequences; otherwise the batch is
    /// the preset's micro-batch.
    std::vector<Step> steps() const;
    Sampling sampling() const;
    bool json() const { return json_; }
    /// Whether the command line has the setting.
    bool given(std::string_view setting) const { return settings_.given().contains(setting); }

  private:
    SettingFlags settings_;
    std::string preset_;
    std::int64_t runs_ = 9;
    bool json_ = false;
};

/// The context that the step's settings describe.
Context context_of(const TrainConfig& config);

/// Describes a model: "12 layers x 768, 12 heads, MLP 3072, context 1024, vocabulary 50257, 124.4M
/// parameters".
std::string shape_of(const ModelConfig& config);

/// Describes the step: "gpt2-124m, 64 x 1024 tokens at once, float32 on cpu with 2 threads".
std::string title_of(const Step& step, const Context& ctx);

}  // namespace gradtile::cli
