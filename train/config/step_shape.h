#pragma once
/// The sizes that a step computes with, which may grow in the course of a run. A run that starts small does
/// its first steps, which learn the frequencies of tokens and of short phrases, in less time.
#include <cstdint>
#include <vector>

#include <gradtile/train/config/train_config.h>

namespace gradtile {

/// Steps with equal shapes launch the same kernels, so that one captured graph serves all of them.
struct StepShape {
    std::int64_t micro_steps = 1;
    std::int64_t micro_batch = 1;  ///< sequences that a process computes in a micro-step
    std::int64_t max_window = 0;   ///< keys that a token sees in any layer, at most; 0: no limit
    bool operator==(const StepShape&) const = default;
};

/// A size that starts at `start` and doubles until it is `full`, in stages of equal length in the run's first
/// `steps` steps. The last doubling may be shorter.
struct Growth {
    std::int64_t start = 0;  ///< 0: the size is always full
    std::int64_t full = 1;
    std::int64_t steps = 0;

    /// Steps count from 1.
    std::int64_t at(std::int64_t step) const;
    /// The sum of the sizes of the steps 1 to `step`.
    std::int64_t sum(std::int64_t step) const;
    /// The first step of each stage.
    std::vector<std::int64_t> stage_starts() const;

  private:
    std::int64_t doublings() const;
};

/// The shapes of a run's steps in one of its processes; all processes have the same.
struct StepShapes {
    Growth sequences = {};         ///< of the process in a step
    std::int64_t micro_batch = 1;  ///< sequences in a micro-step, at most
    Growth window = {};            ///< see StepShape::max_window; no limit when it is full

    static StepShapes of(const TrainConfig& config, std::int64_t ranks = 1);
    /// The shape of a step, counted from 1.
    StepShape at(std::int64_t step) const;
    /// All shapes that the run's steps have.
    std::vector<StepShape> all() const;
};

/// The largest number of keys that a token sees in a layer of the model.
std::int64_t largest_window(const ModelConfig& model);

}  // namespace gradtile
