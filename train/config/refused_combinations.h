#pragma once
/// The combinations of settings that a run does not support.
#include <span>

#include <gradtile/train/config/train_config.h>

namespace gradtile {

struct RefusedCombination {
    const char* setting;
    bool (*is_in)(const TrainConfig& config);
    const char* reason;  ///< follows the setting's value: "with packed; expected 0"
};

/// Returns all refused combinations. validate() throws Error "setting: value reason" for the first one that a
/// config has.
std::span<const RefusedCombination> refused_combinations();

/// A setting that nothing reads in some configs.
struct ConditionalSetting {
    const char* setting;
    bool (*is_used)(const TrainConfig& config);
    const char* condition;  ///< "has no effect without CONDITION"
};

/// A preset, a config file or a checkpoint may hold such settings where nothing reads them, because they hold
/// every setting. A user who sets one on the command line expects an effect.
std::span<const ConditionalSetting> conditional_settings();
/// Throws Error "setting: value has no effect without CONDITION" for the first member of `given`, a JSON
/// object of settings, that the config does not use and that differs from the default.
void check_used(const TrainConfig& config, const JsonValue& given);

/// Settings that row ranges do not support: attention's mask of a model with prefix, and of completions that
/// share a prompt.
std::span<const RefusedCombination> refused_with_row_ranges();
/// Throws Error "setting: value with WHAT; expected ..." for the first one that a config has.
void check_row_ranges(const TrainConfig& config, const char* what);

/// Settings that need a GPU, and settings that need a CPU.
std::span<const RefusedCombination> refused_on_cpu();
std::span<const RefusedCombination> refused_on_gpu();
/// Throws Error "setting: value on DEVICE; expected ..." for the first one that a config of a run on this
/// device has.
void check_device(const TrainConfig& config, Device device);

}  // namespace gradtile
