#include <gradtile/train/memory_request.h>

#include <algorithm>

#include <gradtile/train/configured_optimizer.h>
#include <gradtile/train/parallel/data_parallel.h>
#include <gradtile/train/parallel/internal/frozen_values.h>
#include <gradtile/train/parallel/internal/value_slots.h>
#include <gradtile/train/shard_copies.h>

namespace gradtile {
namespace {

/// Returns the bytes of the largest graph that the run captures.
std::size_t largest_graph(const TrainConfig& config, std::int64_t ranks) {
    std::size_t largest = 0;
    for (const StepShape& shape : StepShapes::of(config, ranks).all())
        if (const std::size_t bytes = step_graph_bytes(config, shape, ranks); bytes <= max_step_graph_bytes)
            largest = std::max(largest, bytes);
    return largest;
}

MemoryRequest::Save save_of(const TrainConfig& config, bool sharded) {
    if (config.out.empty()) return MemoryRequest::Save::none;
    if (!sharded) return MemoryRequest::Save::whole;
    return config.checkpoint_parts ? MemoryRequest::Save::part : MemoryRequest::Save::gathered;
}

}  // namespace

std::size_t step_graph_bytes(const TrainConfig& config, const StepShape& shape, std::int64_t ranks) {
    // A layer's share in each micro-step, forward and backward. H200s used 83 kB in 30 nodes (6 layers, 800
    // micro-steps), 101 kB in 37 nodes (12 layers, 120 micro-steps); with gradient slots, whose exchange is
    // on a stream of its own, 336 kB in 34 nodes (48 layers, 51 micro-steps).
    constexpr std::size_t one_stream = 110'000, two_streams = 350'000;
    const DataParallelOptions exchange = data_parallel_options(config);
    const int processes = static_cast<int>(ranks);
    const bool has_second_stream = exchange.has_slots(processes) || exchange.has_value_slots(processes) ||
                                   exchange.has_frozen_slots(processes) ||
                                   has_part(config.offload, Offload::residuals);
    // Seven products for each matrix with an adapter are about as many kernels as the rest of a block has.
    const std::size_t blocks = config.adapters.rank > 0 ? 2 : 1;
    return blocks * static_cast<std::size_t>(config.model.layers * shape.micro_steps) *
           (has_second_stream ? two_streams : one_stream);
}

void check_step_graph(const TrainConfig& config, const StepShape& shape, std::int64_t ranks) {
    const std::size_t bytes = step_graph_bytes(config, shape, ranks);
    check(bytes <= max_step_graph_bytes, shape.micro_steps, " micro-steps of ", config.model.layers,
          " layers would take about ", bytes >> 20, " MiB of the GPU's memory; expected at most ",
          max_step_graph_bytes >> 20, " MiB");
}

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
                          .save = save_of(config, sharded),
                          .offload_optimizer = has_part(config.offload, Offload::optimizer),
                          .joins_masters = joins_masters_to_save(config),
                          .offload_gradients = has_part(config.offload, Offload::gradients),
                          .bfloat16_sums = config.gradient_dtype == TrainDType::bf16,
                          .offload_residuals = has_part(config.offload, Offload::residuals),
                          .offload_values = has_part(config.offload, Offload::weights),
                          .optimizer_shards = shards,
                          .shard_copies = sharded ? config.shard_copies * ShardCopies::copies : 0,
                          .optimizer_part = optimizer_part};
    if (device.is_cuda()) {
        request.is_for_gpu = true;
        request.graph = config.cuda_graph ? largest_graph(config, ranks) : 0;
        request.times_products = !config.training.deterministic;
    }
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
