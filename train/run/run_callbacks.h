#pragma once
/// The functions that a run calls. Trainer describes when it calls each of them.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gradtile/train/run/step_report.h>

namespace gradtile {

struct LanguageModel;

struct RunCallbacks {
    std::function<void(std::int64_t step)> on_prepare = {};
    std::vector<std::function<void(const StepReport&)>> on_step = {};
    std::vector<std::function<void(const StepPart&)>> on_part = {};
    std::function<std::string(const LanguageModel&)> on_sample = {};
    std::vector<std::function<void()>> on_save = {};
    std::function<bool()> stop_when = {};
};

}  // namespace gradtile
