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

std::int64_t bucket_elements(int zero, std::int64_t elements) {
    constexpr std::int64_t most = 12 << 20;
    return zero == 2 ? std::clamp(elements / 16, parameter_alignment, most) : most;
}

std::vector<ShardBucket> shard_buckets(const ParameterStore& store, std::int64_t elements, int processes,
                                       const DataParallelOptions& options) {
    return shard_buckets(store.parameters(), elements, bucket_elements(options.zero, elements), processes,
                         processes > 1 ? options.whole_cost : WholeCost{});
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
    if (processes == 1) options_.zero = 0;
    const std::int64_t multiple = flat_multiple(is_sharded() ? processes : 1);
    check(store.flat_elements() % multiple == 0, "data parallel: flat blocks of ", store.flat_elements(),
          " elements; expected a multiple of ", multiple);
    if (processes == 1) return;
    exchange_ = std::make_unique<SideStream>(ctx.device());
    if (is_sharded()) {
        assign_shards(ctx);
    } else {
        for (const FlatRange& range : cut_into_buckets(store.parameters(), {0, store.flat_elements()},
                                                       bucket_elements(0, store.flat_elements()), multiple))
            buckets_.push_back({.range = range});
    }
    for (Bucket& bucket : buckets_)
        bucket.parameters = std::ranges::count_if(
            store.parameters(), [&](const Parameter& parameter) { return overlap(bucket.range, parameter); });
}

DataParallel::~DataParallel() = default;

void DataParallel::assign_shards(const Context& ctx) {
    const int processes = communicator_.size();
    std::vector<ShardBucket> shards = shard_buckets(store_, store_.flat_elements(), processes, options_);
    // Symmetric memory must be allocated in equal sizes by all processes.
    const std::int64_t longest = largest_shard(shards, processes);
    std::int64_t packed = 0;
    std::vector<FlatRange> ranges;
    for (ShardBucket& shard : shards) {
        ranges.push_back(shard.range);
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
    const Context symmetric = ctx.with_allocator(communicator_.symmetric_memory(ctx));
    gradients_ = zeros(symmetric, {longest}, accumulator_of(store_.dtype())).slice(0, 0, packed);
    if (options_.zero < 2) return;
    slots_ = std::make_unique<GradientSlots>(
        symmetric, store_, ranges, exchange_.get(),
        [this](std::size_t bucket, const Context& exchange, const Tensor& gradients) {
            sum_bucket(exchange, buckets_[bucket], gradients);
        });
}

std::int64_t DataParallel::own_elements() const {
    return gradients_.elements();
}

std::size_t DataParallel::gradient_bytes() const {
    const std::size_t local = slots_ ? slots_->bytes() : store_.gradients().bytes();
    return is_sharded() ? gradients_.bytes() + local : local;
}

BackwardHooks DataParallel::start_micro_step(const Context& ctx, std::int64_t micro_step,
                                             std::int64_t micro_steps) {
    if (slots_) {
        adds_ = micro_step > 0;
        return slots_->start_pass(ctx, micro_step == 0);
    }
    if (micro_step == 0) store_.reset_gradients();
    if (buckets_.empty() || ctx.is_planning() || micro_step + 1 < micro_steps) return {};
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
    for (const Bucket* bucket : complete_)
        sum_bucket(exchange_->after(ctx), *bucket, slice_of(store_.gradients(), bucket->range));
    complete_.clear();
}

/// `local` holds this process's gradients of the bucket.
void DataParallel::sum_bucket(const Context& exchange, const Bucket& bucket, const Tensor& local) const {
    if (!is_sharded()) {
        communicator_.all_reduce(exchange, local);
        return;
    }
    const auto local_part = [&](const FlatRange& range) {
        return local.slice(0, range.begin - bucket.range.begin, range.length);
    };
    if (bucket.shards.equal_parts) {
        const Tensor packed = slice_of(gradients_, bucket.packed);
        const Tensor sum = adds_ ? local_part(bucket.own.front()) : packed;
        communicator_.reduce_scatter(exchange, local, sum);
        if (adds_) axpy(exchange, packed, 1.0, sum);
        return;
    }
    communicator_.all_reduce(exchange, local);
    std::int64_t packed = bucket.packed.begin;
    for (const FlatRange& range : bucket.own) {
        const Tensor own = gradients_.slice(0, packed, range.length);
        if (adds_) {
            axpy(exchange, own, 1.0, local_part(range));
        } else {
            copy(exchange, own, local_part(range));
        }
        packed += range.length;
    }
}

void DataParallel::finish_gradients(const Context& ctx) {
    if (buckets_.empty() || ctx.is_planning()) return;
    for (const Bucket& bucket : buckets_)
        check(bucket.pending == 0, "data parallel: ", bucket.pending, " gradients of elements ",
              bucket.range.begin, " to ", bucket.range.end(), " were not reported as complete");
    sum_complete_buckets(ctx);
    exchange_->join(ctx);
    if (slots_) slots_->finish();
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
        gather_bucket(exchange, bucket, slice_of(store_.values(), bucket.range), parameter_alignment);
        if (bucket.gathered) bucket.gathered->record(exchange.stream());
    }
}

/// Sends every process's ranges of a bucket's numbers `full` to all others.
void DataParallel::gather_bucket(const Context& exchange, const Bucket& bucket, const Tensor& full,
                                 std::int64_t numbers_per_64) const {
    const auto part_of = [&](const FlatRange& range) {
        const auto numbers = [&](std::int64_t elements) {
            return elements / parameter_alignment * numbers_per_64;
        };
        return slice_of(full, {numbers(range.begin - bucket.range.begin), numbers(range.length)});
    };
    if (bucket.shards.equal_parts) {
        communicator_.all_gather(exchange, part_of(bucket.own.front()), full);
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

void DataParallel::gather_state(const Context& ctx, DType dtype, std::int64_t numbers_per_64,
                                const BucketAccess& write, const BucketAccess& read) const {
    check(is_sharded(), "gather_state: every process has the whole state");
    const Tensor& memory = slots_ ? slots_->longest() : store_.gradients();
    check(size_of(dtype) <= size_of(memory.dtype()), "gather_state: ", dtype,
          "; expected no longer type than the gradients' ", memory.dtype());
    std::int64_t longest = 0;
    for (const Bucket& bucket : buckets_) {
        const auto numbers = [&](std::int64_t elements) {
            return elements / parameter_alignment * numbers_per_64;
        };
        longest = std::max(longest, bucket.range.length);
        const FlatRange range{numbers(bucket.range.begin), numbers(bucket.range.length)};
        const Tensor full = Tensor::from_blob(memory.raw_data(), {range.length}, dtype, memory.device());
        write(range, full);
        gather_bucket(exchange_->after(ctx), bucket, full, numbers_per_64);
        exchange_->join(ctx);
        read(range, full);
    }
    // A backward pass does not write a gradient block's padding, which the gradient norm and blocks of
    // moments include.
    if (!slots_) fill(ctx, memory.slice(0, 0, longest), 0.0);
}

}  // namespace gradtile
