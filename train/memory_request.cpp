#include <gradtile/train/memory_request.h>

#include <gradtile/train/configured_optimizer.h>
#include <gradtile/train/parallel/data_parallel.h>
#include <gradtile/train/parallel/internal/frozen_values.h>
#include <gradtile/train/parallel/internal/value_slots.h>
#include <gradtile/train/shard_copies.h>

namespace gradtile {

MemoryRequest memory_request(const TrainConfig& config, Device device, std::int64_t ranks) {
    const bool sharded = config.zero > 0 && ranks > 1;
    const std::int64_t shards = sharded ? ranks : 1;
    const auto optimizer_part = [=](const ParameterStore& parameters) {
        return largest_optimizer_part(parameters, config, static_cast<int>(shards));
    };
    const auto bucket_ranges = [=](const ParameterStore& store) {
        std::vector<FlatRange> ranges;
        for (const ShardBucket& bucket :
             shard_buckets(store, static_cast<int>(shards), data_parallel_options(config)))
            ranges.push_back(bucket.range);
        return ranges;
    };
    // Hooks refer to the slots, which hold the memory of a dry run.
    const auto gradient_slots = [=](const Context& ctx, const ParameterStore& store) {
        const auto slots = std::make_shared<GradientSlots>(ctx, store, bucket_ranges(store), nullptr,
                                                           GradientSlots::Exchange());
        const BackwardHooks hooks = slots->start_pass(ctx, true);
        return BackwardHooks{
            .gradient_complete = [slots,
                                  hooks](const Parameter& parameter) { hooks.gradient_complete(parameter); },
            .before_attention = hooks.before_attention};
    };
    MemoryRequest request{.model = config.model,
                          .training = config.training,
                          .adapters = config.adapters,
                          .dtype = storage_dtype(config.dtype),
                          .micro_batch = config.micro_batch_size(ranks),
                          .max_documents = max_documents_of(config),
                          .row_ranges = config.model.prefix,
                          .ring = static_cast<int>(config.context_parallel),
                          .snapshot = !config.out.empty() && (device.is_cpu() || !sharded),
                          .offload_optimizer = has_part(config.offload, Offload::optimizer),
                          .joins_masters = !config.out.empty() && joins_masters_to_save(config) &&
                                           (!sharded || config.checkpoint_parts),
                          .offload_gradients = has_part(config.offload, Offload::gradients),
                          .bfloat16_sums = config.gradient_dtype == TrainDType::bf16,
                          .offload_residuals = has_part(config.offload, Offload::residuals),
                          .offload_values = has_part(config.offload, Offload::weights),
                          .optimizer_shards = shards,
                          .shard_copies = sharded ? config.shard_copies * ShardCopies::copies : 0,
                          .optimizer_part = optimizer_part};
    if (data_parallel_options(config).has_slots(static_cast<int>(shards)))
        request.gradient_memory = gradient_slots;
    if (data_parallel_options(config).has_value_slots(static_cast<int>(shards))) {
        request.value_slots = [=](const Context& ctx, const ParameterStore& store) {
            return ValueSlots(ctx, store.parameters(), store.dtype(), bucket_ranges(store), nullptr, {})
                .bytes();
        };
        request.samples = config.sample_every > 0;
    }
    if (data_parallel_options(config).has_frozen_slots(static_cast<int>(shards))) {
        request.frozen_slots = [=](const Context& ctx, const ParameterStore& frozen) {
            return FrozenValues::plan(ctx, frozen, static_cast<int>(shards), data_parallel_options(config));
        };
        request.samples = config.sample_every > 0;
    }
    return request;
}

}  // namespace gradtile
