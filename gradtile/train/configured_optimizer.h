#pragma once
/// The optimizer a TrainConfig names.
#include <memory>

#include <gradtile/train/adamw.h>
#include <gradtile/train/train_config.h>

namespace gradtile {

/// Of every parameter of an allocated store, which must outlive it. Muon takes the blocks' matrices, AdamW
/// the rest.
std::unique_ptr<Optimizer> make_optimizer(const Context& ctx, const ParameterStore& parameters,
                                          const TrainConfig& config);
AdamWOptions adamw_options(const TrainConfig& config);

}  // namespace gradtile
