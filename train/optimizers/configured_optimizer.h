#pragma once
/// The optimizer a TrainConfig names, and how its work and memory are shared out.
#include <memory>

#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/train/optimizers/optimizer.h>
#include <gradtile/train/parallel/shard_layout.h>
#include <gradtile/train/train_config.h>

namespace gradtile {

/// Of every parameter of an allocated store, which must outlive it. Muon takes the blocks' matrices, AdamW
/// the rest.
std::unique_ptr<Optimizer> make_optimizer(const Context& ctx, const ParameterStore& parameters,
                                          const TrainConfig& config);
/// Of what the shard holds.
std::unique_ptr<Optimizer> make_optimizer(const Context& ctx, const ParameterStore& parameters,
                                          const OptimizerShard& shard, const TrainConfig& config);

/// What shards must leave whole for that optimizer: Muon's matrices, by the operations of their update.
WholeCost whole_cost(const TrainConfig& config);

/// What the optimizer of the process that keeps most updates and keeps, the store's flat blocks being of so
/// many elements and shared by `processes`. The store need not be allocated.
OptimizerPart largest_optimizer_part(const ParameterStore& parameters, std::int64_t elements,
                                     const TrainConfig& config, int processes);

}  // namespace gradtile
