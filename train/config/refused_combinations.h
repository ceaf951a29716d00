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

}  // namespace gradtile
