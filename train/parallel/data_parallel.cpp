#include <gradtile/train/parallel/data_parallel.h>

#include <algorithm>
#include <utility>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/side_stream.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

Tensor slice_of(const Tensor& flat, const FlatRange& range) {
    return flat.slice(0, range.begin, range.length);
}

bool overlap(const FlatRange& range, const Parameter& parameter) {
    return parameter.offset() < range.end() &&
           parameter.offset() + parameter.shape().elements() > range.begin;
}

}  // namespace

void pack(const Context& ctx, const Tensor& full, std::span<const FlatRange> ranges, const Tensor& packed) {
    check(full.rank() == 1 && packed.rank() == 1, "pack: packed ", packed, " of ", full,
          "; expected flat tensors");
    check_sharing(ctx, "pack", {"packed", packed}, {{"whole", full}});
    std::int64_t offset = 0;
    for (const FlatRange& range : ranges) {
        copy(ctx, packed.slice(0, offset, range.length), slice_of(full, range));
        offset += range.length;
    }
}

/// A bucket and its progress in the current step.
struct DataParallel::Bucket {
    FlatRange range;
    ShardBucket shards = {};                     // only if the optimizer is sharded
    std::vector<FlatRange> own = {};             // this process's ranges in `shards`
    FlatRange packed = {};                       // the range that `own` has in the packed gradients
    std::int64_t parameters = 0;                 // how many parameters have elements in the bucket
    std::int64_t pending = 0;                    // how many of these parameters have no gradient yet
    std::unique_ptr<cuda::Event> gathered = {};  // on a GPU: recorded once the values are gathered
};

DataParallel::DataParallel(const Context& ctx, const ParameterStore& store, const Communicator& communicator,
                           const DataParallelOptions& options)
    : store_(store), communicator_(communicator), options_(options), gradients_(store.gradients()) {
    const int processes = communicator.size();
    options_.sharded = options.sharded && processes > 1;
    const std::int64_t multiple = flat_multiple(is_sharded() ? processes : 1);
    check(store.flat_elements() % multiple == 0, "data parallel: flat blocks of ", store.flat_elements(),
          " elements; expected a multiple of ", multiple);
    if (processes == 1) return;
    exchange_ = std::make_unique<SideStream>(ctx.device());
    if (is_sharded()) {
        assign_shards(ctx);
    } else {
        for (const FlatRange& range : cut_into_buckets(store.parameters(), {0, store.flat_elements()},
                                                       options.bucket_elements, multiple))
            buckets_.push_back({.range = range});
    }
    for (Bucket& bucket : buckets_)
        bucket.parameters = std::ranges::count_if(
            store.parameters(), [&](const Parameter& parameter) { return overlap(bucket.range, parameter); });
}

DataParallel::~DataParallel() = default;

void DataParallel::assign_shards(const Context& ctx) {
    const int processes = communicator_.size();
    std::vector<ShardBucket> shards = shard_buckets(store_.parameters(), store_.flat_elements(),
                                                    options_.bucket_elements, processes, options_.whole_cost);
    // Symmetric memory must be allocated in equal sizes by all processes.
    const std::int64_t longest = largest_shard(shards, processes);
    std::int64_t packed = 0;
    for (ShardBucket& shard : shards) {
        Bucket& bucket = buckets_.emplace_back();
        bucket.range = shard.range;
        bucket.packed.begin = packed;
        for (const OwnedRange& part : shard.parts) {
            if (part.owner != communicator_.rank()) continue;
            bucket.own.push_back(part.range);
            own_ranges_.push_back(part.range);
            packed += part.range.length;
        }
        bucket.packed.length = packed - bucket.packed.begin;
        bucket.shards = std::move(shard);
        if (ctx.device().is_cuda()) bucket.gathered = std::make_unique<cuda::Event>(ctx.device());
    }
    gradients_ =
        zeros(ctx.with_allocator(communicator_.symmetric_memory(ctx)), {longest}, store_.gradients().dtype())
            .slice(0, 0, packed);
}

std::int64_t DataParallel::own_elements() const {
    return gradients_.elements();
}

BackwardHooks DataParallel::overlap_sums_with_backward(const Context& ctx) {
    if (buckets_.empty() || ctx.is_planning()) return {};
    for (Bucket& bucket : buckets_) bucket.pending = bucket.parameters;
    complete_.clear();
    const auto mark_complete = [this](const Parameter& parameter) {
        // Backward completes the last parameters first, so a parameter's buckets are visited from the last.
        for (std::size_t i = buckets_.size(); i-- > 0;)
            if (overlap(buckets_[i].range, parameter) && --buckets_[i].pending == 0)
                complete_.push_back(&buckets_[i]);
    };
    return {.gradient_complete = mark_complete,
            .before_attention = [this, ctx] { sum_complete_buckets(ctx); }};
}

void DataParallel::sum_complete_buckets(const Context& ctx) {
    for (const Bucket* bucket : complete_) sum_bucket(ctx, *bucket);
    complete_.clear();
}

void DataParallel::sum_bucket(const Context& ctx, const Bucket& bucket) {
    const Context exchange = exchange_->after(ctx);
    const Tensor local_gradients = slice_of(store_.gradients(), bucket.range);
    if (!is_sharded()) {
        communicator_.all_reduce(exchange, local_gradients);
        return;
    }
    const Tensor packed = slice_of(gradients_, bucket.packed);
    if (bucket.shards.equal_parts) {
        communicator_.reduce_scatter(exchange, local_gradients, packed);
    } else {
        communicator_.all_reduce(exchange, local_gradients);
        pack(exchange, store_.gradients(), bucket.own, packed);
    }
}

void DataParallel::finish_gradients(const Context& ctx) {
    if (buckets_.empty() || ctx.is_planning()) return;
    for (const Bucket& bucket : buckets_)
        check(bucket.pending == 0, "data parallel: ", bucket.pending, " gradients of elements ",
              bucket.range.begin, " to ", bucket.range.end(), " were not reported as complete");
    sum_complete_buckets(ctx);
    exchange_->join(ctx);
}

void DataParallel::sum(const Context& ctx, const Tensor& x) const {
    if (buckets_.empty() || ctx.is_planning()) return;
    communicator_.all_reduce(exchange_->after(ctx), x);
    exchange_->join(ctx);
}

ForwardHooks DataParallel::overlap_gather_with_forward(const Context& ctx) {
    if (!is_sharded() || ctx.is_planning()) return {};
    start_gathering(ctx);
    next_bucket_ = 0;
    const auto before_use = [this, ctx](const Parameter& last) {
        const std::int64_t end = last.offset() + last.padded_value().elements();
        for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].range.begin < end; ++next_bucket_)
            if (const auto& gathered = buckets_[next_bucket_].gathered) gathered->wait_in(ctx.stream());
    };
    return {.before_use = before_use};
}

void DataParallel::start_gathering(const Context& ctx) {
    const Context exchange = exchange_->after(ctx);
    for (const Bucket& bucket : buckets_) {
        gather_bucket(exchange, bucket, store_.values(), parameter_alignment);
        if (bucket.gathered) bucket.gathered->record(exchange.stream());
    }
}

/// Sends every process's ranges of `full` to all others.
void DataParallel::gather_bucket(const Context& exchange, const Bucket& bucket, const Tensor& full,
                                 std::int64_t numbers_per_64) const {
    const auto part_of = [&](const FlatRange& range) {
        const auto numbers = [&](std::int64_t elements) {
            return elements / parameter_alignment * numbers_per_64;
        };
        return slice_of(full, {numbers(range.begin), numbers(range.length)});
    };
    if (bucket.shards.equal_parts) {
        communicator_.all_gather(exchange, part_of(bucket.own.front()), part_of(bucket.range));
        return;
    }
    for (const OwnedRange& part : bucket.shards.parts)
        communicator_.broadcast(exchange, part_of(part.range), part.owner);
}

void DataParallel::gather_values(const Context& ctx) {
    if (!is_sharded() || ctx.is_planning()) return;
    start_gathering(ctx);
    exchange_->join(ctx);
}

void DataParallel::unpack(const Context& ctx, const Tensor& packed, std::span<const FlatRange> ranges,
                          const Tensor& full, std::int64_t numbers_per_64) const {
    check_sharing(ctx, "unpack", {"whole", full}, {{"packed", packed}});
    std::int64_t offset = 0;
    for (const FlatRange& range : ranges) {
        copy(ctx, slice_of(full, range), packed.slice(0, offset, range.length));
        offset += range.length;
    }
    gather(ctx, full, numbers_per_64);
}

void DataParallel::gather(const Context& ctx, const Tensor& full, std::int64_t numbers_per_64) const {
    if (!is_sharded()) return;
    const Context exchange = exchange_->after(ctx);
    for (const Bucket& bucket : buckets_) gather_bucket(exchange, bucket, full, numbers_per_64);
    exchange_->join(ctx);
}

}  // namespace gradtile
