#include <gradtile/train/configured_optimizer.h>

#include <algorithm>
#include <vector>

#include <gradtile/train/optimizers/elementwise_optimizer.h>
#include <gradtile/train/parallel/data_parallel.h>

namespace gradtile {
namespace {

template <class Settings>
concept HasRule = requires {
    typename Settings::Rule;
};

std::int64_t padded_end(const Parameter& parameter) {
    return parameter.offset() + rounded_up(parameter.shape().elements(), parameter_alignment);
}

/// Calls visit(parameter, owner, elements) for every parameter piece that a process updates.
template <class Visit>
void visit_pieces(std::span<const Parameter> parameters, const std::vector<ShardBucket>& buckets,
                  const Visit& visit) {
    auto first = parameters.begin();  // both lists are in flat-block order
    for (const ShardBucket& bucket : buckets)
        for (const auto& [range, owner] : bucket.parts) {
            while (first != parameters.end() && padded_end(*first) <= range.begin) ++first;
            for (auto p = first; p != parameters.end() && p->offset() < range.end(); ++p)
                visit(*p, owner, std::min(padded_end(*p), range.end()) - std::max(p->offset(), range.begin));
        }
}

/// Returns the factors of embeddings, head and vectors on config.lr. A tied head is the token embedding.
LearningRateFactor lr_factor_of(const TrainConfig& config) {
    return [embedding = config.embedding_lr_factor, head = config.head_lr_factor,
            vector = config.vector_lr_factor](const Parameter& parameter) {
        const std::string& name = parameter.name();
        if (name == "wte.weight" || name == "wpe.weight" || name.ends_with(".value_embedding.weight"))
            return embedding;
        if (name == "head.weight") return head;
        return parameter.shape().rank() == 1 ? vector : 1.0;
    };
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const Context& ctx, const ParameterStore& parameters,
                                          const TrainConfig& config,
                                          const std::optional<OptimizerShard>& shard) {
    const MomentStorage moments{.format = config.moment_dtype, .seed = Seed{config.seed}};
    const auto make = [&]<class Settings>(const Settings& settings) -> std::unique_ptr<Optimizer> {
        if constexpr (HasRule<Settings>) {
            return std::make_unique<ElementwiseOptimizer>(
                ctx, parameters, parameters.parameters(),
                settings.rule(config.weight_decay, config.cautious_decay), shard, lr_factor_of(config),
                moments);
        } else {
            const OptimizerSetup setup{.lr = config.lr,
                                       .weight_decay = config.weight_decay,
                                       .cautious_decay = config.cautious_decay,
                                       .lr_factor = lr_factor_of(config),
                                       .moments = moments,
                                       .model = config.model,
                                       .settings = config.optimizer_settings};
            return settings.make(ctx, parameters, setup, shard);
        }
    };
    return visit_optimizer(config.optimizer, config.optimizer_settings, make);
}

ParameterUpdate update_of(const TrainConfig& config, const Parameter& parameter) {
    const auto ask = [&]<class Settings>(const Settings& settings) -> ParameterUpdate {
        if constexpr (HasRule<Settings>) {
            return {.moments = Settings::Rule::moments.size()};
        } else {
            return settings.update_of(parameter, config.model);
        }
    };
    return visit_optimizer(config.optimizer, config.optimizer_settings, ask);
}

WholeCost whole_cost(const TrainConfig& config) {
    return [config](const Parameter& parameter) { return update_of(config, parameter).product_flops; };
}

DataParallelOptions data_parallel_options(const TrainConfig& config) {
    const bool has_adapters = config.adapters.rank > 0, offloads = has_part(config.offload, Offload::weights);
    // Adapters are small, so their values stay whole on the device, where a pass need not wait for them.
    return {.zero = static_cast<int>(has_adapters ? std::min<std::int64_t>(config.zero, 2) : config.zero),
            .whole_cost = whole_cost(config),
            .offloads_sums = has_part(config.offload, Offload::gradients),
            .bfloat16_sums = config.gradient_dtype == TrainDType::bf16,
            .offloads_values = offloads && !has_adapters,
            .shards_frozen = has_adapters && config.zero == 3,
            .offloads_frozen = has_adapters && offloads};
}

OptimizerPart largest_optimizer_part(const ParameterStore& parameters, const TrainConfig& config,
                                     int processes) {
    const std::vector<ShardBucket> buckets =
        shard_buckets(parameters, processes, data_parallel_options(config));
    const DType accumulator = accumulator_of(storage_dtype(config.dtype));
    const std::size_t accumulator_bytes = size_of(accumulator);
    const MomentStorage moments{.format = config.moment_dtype};
    const std::size_t number_bytes = size_of(moment_dtype(moments, accumulator));
    std::vector<OptimizerPart> parts(static_cast<std::size_t>(processes));
    visit_pieces(parameters.parameters(), buckets,
                 [&](const Parameter& parameter, int owner, std::int64_t piece) {
                     const ParameterUpdate update = update_of(config, parameter);
                     OptimizerPart& part = parts[static_cast<std::size_t>(owner)];
                     part.state_bytes +=
                         static_cast<std::size_t>(moments.numbers(piece)) * update.moments * number_bytes;
                     // Rows and products belong to parameters that one process updates whole.
                     if (update.row_moments > 0)
                         part.state_bytes +=
                             static_cast<std::size_t>(rounded_up(parameter.shape()[0], parameter_alignment)) *
                             update.row_moments * accumulator_bytes;
                     part.product_flops += update.product_flops;
                 });
    OptimizerPart largest{.elements = static_cast<std::size_t>(largest_shard(buckets, processes)),
                          .master_bytes = master_bytes(config.masters)};
    for (const OptimizerPart& part : parts) {
        largest.state_bytes = std::max(largest.state_bytes, part.state_bytes);
        largest.all_state_bytes += part.state_bytes;
        largest.product_flops = std::max(largest.product_flops, part.product_flops);
    }
    return largest;
}

}  // namespace gradtile
