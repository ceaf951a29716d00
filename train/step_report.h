#pragma once
/// What is known about a training step once it is done.
#include <cstdint>
#include <optional>
#include <string>

#include <gradtile/core/text/json_value.h>

namespace gradtile {

struct StepReport {
    std::int64_t step = 0;  ///< counted from 1
    double loss = 0.0;      ///< mean over the step's targets
    std::optional<double> val_loss =
        {};  ///< over the whole validation split, when it was evaluated at this step
    double lr = 0.0;
    double grad_norm = 0.0;     ///< before clipping
    double tokens_per_s = 0.0;  ///< from ms
    double ms = 0.0;            ///< the step without evaluation and saving
    /// What was not finite, "loss" or a parameter's name; the update was not applied then. Empty: all is
    /// well.
    std::string not_finite = {};
};

/// As a checkpoint keeps it; numbers that are not finite come back as NaN.
JsonValue to_json(const StepReport& report);
/// Throws Error when something is missing.
StepReport step_report_from(const JsonValue& saved);

/// How far a step or an evaluation is, for what takes long.
struct StepPart {
    enum class Kind { micro_steps, evaluation_windows };
    std::int64_t step = 0;  ///< the step under way, or the one evaluated
    Kind kind = Kind::micro_steps;
    std::int64_t done = 0, all = 0;
};

}  // namespace gradtile
