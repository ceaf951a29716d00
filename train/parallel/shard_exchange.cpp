#include <gradtile/train/parallel/internal/shard_exchange.h>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {

void gather_parts(const Context& exchange, const Communicator& communicator, const ShardBucket& bucket,
                  const Tensor& full, std::int64_t numbers_per_64) {
    const auto part_of = [&](const FlatRange& range) {
        const auto numbers = [&](std::int64_t elements) {
            return elements / parameter_alignment * numbers_per_64;
        };
        return full.slice(0, numbers(range.begin - bucket.range.begin), numbers(range.length));
    };
    if (bucket.equal_parts > 0)
        communicator.all_gather(exchange,
                                part_of(bucket.parts[static_cast<std::size_t>(communicator.rank())].range),
                                part_of(bucket.equal_range()));
    for (const OwnedRange& part : bucket.other_parts())
        communicator.broadcast(exchange, part_of(part.range), part.owner);
}

void copy_part(const Context& ctx, const Tensor& to, const Tensor& from, bool host) {
    if (host && ctx.device().is_cuda()) {
        cuda::copy_bytes(to.raw_data(), from.raw_data(), from.bytes(), ctx.device(), ctx.stream());
    } else {
        copy(ctx, to, from);
    }
}

}  // namespace gradtile
