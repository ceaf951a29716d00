#pragma once
/// A training step's results, and the functions that a run calls. Trainer describes when it calls each of
/// them.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/core/text/json_value.h>

namespace gradtile {

struct StepReport {
    std::int64_t step = 0;  ///< counted from 1
    double loss = 0.0;      ///< mean loss over the step's targets
    /// Mean loss over the whole validation split, if it was evaluated after this step.
    std::optional<double> val_loss = {};
    double lr = 0.0;
    double grad_norm = 0.0;     ///< gradient norm before clipping
    double tokens_per_s = 0.0;  ///< computed from ms
    double ms = 0.0;            ///< step duration without evaluation and saving
    /// Tokens that the run has trained on up to this step: steps x batch x context. Trainer sets this member
    /// and the next one when it records the step.
    std::int64_t tokens = 0;
    /// Seconds that the run has trained, with evaluation and saving. A resumed run continues the count; the
    /// time between two processes and a process's start-up are left out.
    double wall_s = 0.0;
    /// The fraction of the run's time budget that was used after this step, before its evaluation; empty: the
    /// run has none. The next step's learning rate depends on it.
    std::optional<double> budget_used = {};
    /// What was not finite: "loss" or a parameter's name. The update was then not applied. Empty if all
    /// numbers were finite.
    std::string not_finite = {};
};

/// Returns the report as JSON for a checkpoint. A number that is not finite is read back as NaN.
JsonValue to_json(const StepReport& report);
/// Throws Error when a member is missing.
StepReport step_report_from(const JsonValue& saved);

/// Progress within a long step or evaluation.
struct StepPart {
    enum class Kind { micro_steps, evaluation_windows };
    std::int64_t step = 0;  ///< the running step, or the step that is evaluated
    Kind kind = Kind::micro_steps;
    std::int64_t done = 0, all = 0;
};

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
