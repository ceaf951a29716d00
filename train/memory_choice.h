#pragma once
/// The settings with which a run fits its memory budget.
#include <string>

#include <gradtile/core/context.h>
#include <gradtile/train/config/train_config.h>

namespace gradtile {

struct MemoryChoice {
    TrainConfig config;  ///< of the run, with the chosen settings
    std::string
        description;  ///< one line: each chosen setting, what it saves and costs; empty: none is chosen
};

/// Returns how many bytes of config.memory_budget, which is not empty, a run's plan may fill: on a GPU, CUDA
/// and its libraries take the others. Throws Error if none are left.
std::size_t bytes_to_plan(const TrainConfig& config, Device device);

/// Chooses recompute, micro-batch, offload and masters, unless they were given (TrainConfig::given) or differ
/// from their defaults. Of all that fit, the fastest by an estimate that needs no measurement is chosen. A
/// smaller moment-dtype or gradient-dtype changes results, so they are tried only if nothing else fits. Dry
/// runs count the memory, as plan_memory() does. `device` is the run's, and `ctx` has it, too, but in
/// a build without CUDA; `row_ranges`: see MemoryRequest.
/// Throws Error with the smallest need if nothing fits. Every process chooses the same.
MemoryChoice choose_within(const Context& ctx, Device device, const TrainConfig& config, std::int64_t ranks,
                           bool row_ranges, std::size_t budget);

}  // namespace gradtile
