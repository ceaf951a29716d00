#pragma once
/// Memory and speed of a model on one device: memory by dry runs, speed by the cost model of `gradtile plan`.
#include <cstddef>
#include <cstdint>

#include <gradtile/core/context.h>
#include <gradtile/tools/plan/cost_model.h>

namespace gradtile {

struct ModelCost {
    std::size_t memory = 0;  ///< bytes
    double tokens_per_second = 0;
};

/// The cost to generate `texts` texts of config.context tokens on `device`, one token of each per step. `dry`
/// plans with the device's operators (Context::plan), or with another device's if the build lacks them.
ModelCost generation_cost(const Context& dry, Device device, const ModelConfig& config, DType dtype,
                          std::int64_t texts, const CostConstants& constants);

/// The cost to train on `device`, with adapters if the config has them. `config` is valid and has a
/// vocabulary. With adapters the predicted step leaves out the gradients and the update of the frozen
/// weights.
ModelCost training_cost(const Context& dry, Device device, const TrainConfig& config,
                        const CostConstants& constants);

}  // namespace gradtile
