#include <gradtile/train/optimizers/configured_optimizer.h>

#include <algorithm>

#include <gradtile/train/optimizers/adamw.h>
#include <gradtile/train/optimizers/muon.h>
#include <gradtile/train/parallel/data_parallel.h>

namespace gradtile {
namespace {

AdamWOptions adamw_options(const TrainConfig& config) {
    return {.beta1 = config.beta1,
            .beta2 = config.beta2,
            .epsilon = config.epsilon,
            .weight_decay = config.weight_decay};
}

MuonOptions muon_options(const TrainConfig& config) {
    return {.lr_ratio = config.muon_lr / config.lr,
            .momentum = config.muon_momentum,
            .weight_decay = config.weight_decay,
            .adamw = adamw_options(config)};
}

bool is_in_block(const Parameter& parameter) {
    return parameter.name().starts_with("h.");
}

bool is_hidden_matrix(const Parameter& parameter) {
    return parameter.shape().rank() == 2 && is_in_block(parameter);
}

/// Tensors of the parameter's shape that its optimizer keeps: Muon's momentum, or AdamW's m and v.
std::size_t moments_of(const TrainConfig& config, const Parameter& parameter) {
    return config.optimizer == OptimizerKind::muon && is_hidden_matrix(parameter) ? 1 : 2;
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const Context& ctx, const ParameterStore& parameters,
                                          const TrainConfig& config) {
    if (config.optimizer == OptimizerKind::adamw)
        return std::make_unique<AdamW>(ctx, parameters, adamw_options(config));
    return std::make_unique<Muon>(ctx, parameters, is_in_block, muon_options(config));
}

std::unique_ptr<Optimizer> make_optimizer(const Context& ctx, const ParameterStore& parameters,
                                          const OptimizerShard& shard, const TrainConfig& config) {
    if (config.optimizer == OptimizerKind::adamw)
        return std::make_unique<AdamW>(ctx, parameters, parameters.parameters(), shard,
                                       adamw_options(config));
    return std::make_unique<Muon>(ctx, parameters, is_in_block, shard, muon_options(config));
}

WholeCost whole_cost(const TrainConfig& config) {
    if (config.optimizer == OptimizerKind::adamw) return {};
    return [](const Parameter& parameter) {
        return is_hidden_matrix(parameter) ? newton_schulz_flops(parameter.shape()) : 0.0;
    };
}

OptimizerPart largest_optimizer_part(const ParameterStore& parameters, std::int64_t elements,
                                     const TrainConfig& config, int processes) {
    const std::vector<ShardBucket> buckets =
        shard_buckets(parameters.parameters(), elements, DataParallelOptions{}.bucket_elements, processes,
                      processes > 1 ? whole_cost(config) : WholeCost{});
    const std::size_t moment = size_of(accumulator_of(storage_dtype(config.dtype)));
    std::vector<std::size_t> state(static_cast<std::size_t>(processes), 0);
    for (const ShardBucket& bucket : buckets)
        for (const auto& [range, owner] : bucket.parts)
            for (const Parameter& parameter : parameters.parameters()) {
                const std::int64_t begin = std::max(parameter.offset(), range.begin);
                const std::int64_t end = std::min(
                    parameter.offset() + rounded_up(parameter.shape().elements(), parameter_alignment),
                    range.end());
                if (begin < end)
                    state[static_cast<std::size_t>(owner)] +=
                        static_cast<std::size_t>(end - begin) * moments_of(config, parameter) * moment;
            }
    return {.elements = static_cast<std::size_t>(largest_shard(buckets, processes)),
            .state_bytes = *std::ranges::max_element(state)};
}

}  // namespace gradtile
