#pragma once
/// The memory that a run needs.
#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/train/config/step_shape.h>
#include <gradtile/train/config/train_config.h>

namespace gradtile {

/// Returns the plan_memory() request for one of `ranks` processes; all have the same. validate(config, ranks)
/// must not throw.
MemoryRequest memory_request(const TrainConfig& config, Device device, std::int64_t ranks = 1);

/// Estimates the device memory in bytes that the driver takes for the captured CUDA graph of a step. `ranks`:
/// see memory_request().
std::size_t step_graph_bytes(const TrainConfig& config, const StepShape& shape, std::int64_t ranks);
/// A step whose graph would take more bytes is not captured. Such a step has many micro-steps of a large
/// model, so its kernels run for so long that launching them one by one costs little.
inline constexpr std::size_t max_step_graph_bytes = std::size_t{256} << 20;
/// Throws Error if the graph of a step would take more.
void check_step_graph(const TrainConfig& config, const StepShape& shape, std::int64_t ranks);

}  // namespace gradtile
