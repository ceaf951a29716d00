#pragma once
/// What is known about a training step once it is done.
#include <cstdint>
#include <optional>
#include <string>

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

}  // namespace gradtile
