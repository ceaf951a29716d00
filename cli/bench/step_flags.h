#pragma once
/// The training step that a benchmark is about: a preset's, changed by flags.
#include <initializer_list>
#include <string>
#include <string_view>

#include <gradtile/cli/bench/measure.h>
#include <gradtile/cli/setting_flags.h>

namespace gradtile::cli {

struct Step {
    std::string preset;
    TrainConfig config;
    /// Tokens that are worked on at once.
    std::int64_t rows() const { return config.micro_batch_size() * config.model.context; }
    DType dtype() const { return storage_dtype(config.dtype); }
};

class StepFlags {
  public:
    /// Takes --preset, --runs, --json and the settings that every benchmark heeds (shapes, device, threads),
    /// and those that this one heeds as well. The flags refer to this object: it must live until the command
    /// line is parsed.
    StepFlags(Command& command, std::initializer_list<std::string_view> settings_heeded);

    /// Valid, with a device that is there and a vocabulary. Without --preset a GPU takes gpt2-124m with 64
    /// sequences, and in bfloat16 whatever the preset; without --batch a step is what the preset holds at
    /// once.
    Step step() const;
    Sampling sampling() const;
    bool json() const { return json_; }
    /// Whether the setting stood on the command line.
    bool given(std::string_view setting) const;

  private:
    SettingFlags settings_;
    std::string preset_;
    std::int64_t runs_ = 9;
    bool json_ = false;
};

/// Where such a step runs.
Context context_of(const TrainConfig& config);

/// "gpt2-124m, 64 x 1024 tokens at once, float32 on cpu with 2 threads".
std::string title_of(const Step& step, const Context& ctx);

}  // namespace gradtile::cli
