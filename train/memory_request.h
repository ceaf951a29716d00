#pragma once
/// The memory that a run needs.
#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/train/config/train_config.h>

namespace gradtile {

/// Returns the plan_memory() request for one of `ranks` processes; all have the same. validate(config, ranks)
/// must not throw.
MemoryRequest memory_request(const TrainConfig& config, Device device, std::int64_t ranks = 1);

}  // namespace gradtile
