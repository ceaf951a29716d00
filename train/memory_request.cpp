#include <gradtile/train/memory_request.h>

#include <gradtile/train/configured_optimizer.h>

namespace gradtile {

MemoryRequest memory_request(const TrainConfig& config, Device device, std::int64_t ranks) {
    const bool sharded = config.zero == 1 && ranks > 1;
    const std::int64_t shards = sharded ? ranks : 1;
    const auto optimizer_part = [=](const ParameterStore& parameters, std::int64_t elements) {
        return largest_optimizer_part(parameters, elements, config, static_cast<int>(shards));
    };
    return {.model = config.model,
            .training = config.training,
            .adapters = config.adapters,
            .dtype = storage_dtype(config.dtype),
            .micro_batch = config.micro_batch_size(ranks),
            .max_documents = max_documents_of(config),
            .row_ranges = config.model.prefix,
            .ring = static_cast<int>(config.context_parallel),
            .snapshot = !config.out.empty() && (device.is_cpu() || !sharded),
            .optimizer_shards = shards,
            .optimizer_part = optimizer_part};
}

}  // namespace gradtile
