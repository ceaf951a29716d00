#pragma once
/// The optimizer that a TrainConfig names, and how processes share its work and memory.
#include <memory>
#include <optional>

#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/optimizers/optimizer.h>
#include <gradtile/train/parallel/data_parallel.h>

namespace gradtile {

/// Makes the optimizer that `config` names, for every parameter in an allocated store, which must outlive the
/// optimizer. If there is a shard, the optimizer updates only the elements in the shard.
std::unique_ptr<Optimizer> make_optimizer(const Context& ctx, const ParameterStore& parameters,
                                          const TrainConfig& config,
                                          const std::optional<OptimizerShard>& shard = {});

/// Returns the moments and operations that the optimizer needs to update a parameter. The parameter's store
/// need not be allocated.
ParameterUpdate update_of(const TrainConfig& config, const Parameter& parameter);

/// The cost for parameters that shards must not cut: the operations in their update's matrix products.
WholeCost whole_cost(const TrainConfig& config);

/// Returns how the processes of a run share its optimizer, gradients and values.
DataParallelOptions data_parallel_options(const TrainConfig& config);

/// Returns the largest optimizer part that one of `processes` processes has. The store need not be allocated.
OptimizerPart largest_optimizer_part(const ParameterStore& parameters, const TrainConfig& config,
                                     int processes);

}  // namespace gradtile
