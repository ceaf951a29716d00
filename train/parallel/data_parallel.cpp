#include <gradtile/train/parallel/data_parallel.h>

#include <algorithm>
#include <utility>

#include <gradtile/core/side_stream.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/parallel/internal/frozen_values.h>
#include <gradtile/train/parallel/internal/rounded_sum.h>
#include <gradtile/train/parallel/internal/shard_exchange.h>
#include <gradtile/train/parallel/internal/value_slots.h>

namespace gradtile {
namespace {

Tensor slice_of(const Tensor& flat, const FlatRange& range) {
    return flat.slice(0, range.begin, range.length);
}

/// Borders between buckets cut no parameter.
bool lies_in(const FlatRange& range, const Parameter& parameter) {
    return parameter.offset() >= range.begin && parameter.offset() < range.end();
}

BucketRule bucket_rule(const DataParallelOptions& options, std::int64_t elements) {
    if (options.zero < 2 && !options.has_slots(1) && !options.has_value_slots(1))
        return {.min_elements = max_bucket_elements};
    return slot_bucket_rule(elements);
}

}  // namespace

std::vector<ShardBucket> shard_buckets(const ParameterStore& store, int processes,
                                       const DataParallelOptions& options) {
    const std::int64_t elements = store.flat_elements();
    return shard_buckets(store.parameters(), elements, bucket_rule(options, elements), processes,
                         processes > 1 ? options.whole_cost : WholeCost{});
}

struct DataParallel::OwnPart {
    FlatRange range;
    std::int64_t packed = 0;  // its place in gradients() and own_values()
};

/// A bucket and its progress in the current step.
struct DataParallel::Bucket {
    FlatRange range;
    ShardBucket shards = {};                     // only if the optimizer is sharded
    std::vector<OwnPart> own = {};               // what this process keeps of sums and values
    std::size_t first_stage = 0;                 // of the first parameter
    std::int64_t parameters = 0;                 // how many parameters are in the bucket
    std::int64_t pending = 0;                    // how many of these parameters have no gradient yet
    std::unique_ptr<cuda::Event> gathered = {};  // on a GPU: recorded once the values are gathered
};

DataParallel::DataParallel(const Context& ctx, const ParameterStore& store, const Communicator& communicator,
                           const DataParallelOptions& options, const ParameterStore* frozen)
    : store_(store), communicator_(communicator), options_(options), gradients_(store.gradients()) {
    const int processes = communicator.size();
    if (processes == 1) options_.zero = 0;
    check(!options_.offloads_values || options_.zero == 0 || options_.zero == 3, "data parallel: zero ",
          options_.zero, " with offloaded values; expected 0 or 3");
    const bool has_slots = options_.has_slots(processes),
               has_value_slots = options_.has_value_slots(processes),
               has_frozen_slots = options_.has_frozen_slots(processes);
    const std::int64_t elements = store.flat_elements();
    if (!is_sharded()) own_ranges_ = {{0, elements}};
    if (processes == 1 && !has_slots && !has_value_slots && !has_frozen_slots) return;
    exchange_ = std::make_unique<SideStream>(ctx.device());
    if (has_frozen_slots) {
        check(frozen != nullptr, "data parallel: slots for frozen values; expected their store");
        frozen_ = std::make_unique<FrozenValues>(ctx, host_memory(ctx), *frozen, communicator, options_,
                                                 *exchange_);
    }
    if (processes == 1 && !has_slots && !has_value_slots) return;
    if (is_sharded()) {
        assign_shards(ctx);
    } else {
        for (const FlatRange& range :
             cut_into_buckets(store.parameters(), own_ranges_.front(), bucket_rule(options_, elements)))
            buckets_.push_back({.range = range, .own = {{range, range.begin}}});
        if (has_slots)
            gradients_ = zeros(options_.offloads_sums ? host_memory(ctx) : ctx, {elements}, sum_dtype());
        if (has_value_slots) own_values_ = zeros(host_memory(ctx), {elements}, store.dtype());
    }
    for (Bucket& bucket : buckets_)
        for (const Parameter& parameter : store.parameters())
            if (lies_in(bucket.range, parameter) && ++bucket.parameters == 1)
                bucket.first_stage = parameter.first_stage();
    make_slots(ctx.with_allocator(communicator.symmetric_memory(ctx)));
}

DataParallel::~DataParallel() = default;

void DataParallel::assign_shards(const Context& ctx) {
    const int processes = communicator_.size();
    std::vector<ShardBucket> shards = shard_buckets(store_, processes, options_);
    // Symmetric memory must be allocated in equal sizes by all processes.
    const std::int64_t longest = largest_shard(shards, processes);
    for (ShardBucket& shard : shards) {
        Bucket& bucket = buckets_.emplace_back();
        bucket.range = shard.range;
        bucket.shards = std::move(shard);
        if (ctx.device().is_cuda()) bucket.gathered = std::make_unique<cuda::Event>(ctx.device());
    }
    std::int64_t packed = 0;
    const auto own_part = [&](Bucket& bucket, const OwnedRange& part) {
        if (part.owner != communicator_.rank()) return;
        bucket.own.push_back({part.range, packed});
        own_ranges_.push_back(part.range);
        packed += part.range.length;
    };
    // Equal parts come first, because a reduce-scatter in symmetric memory needs the same offset everywhere.
    for (Bucket& bucket : buckets_)
        if (bucket.shards.equal_parts > 0)
            own_part(bucket, bucket.shards.parts[static_cast<std::size_t>(communicator_.rank())]);
    for (Bucket& bucket : buckets_)
        for (const OwnedRange& part : bucket.shards.other_parts()) own_part(bucket, part);
    const Context symmetric = ctx.with_allocator(communicator_.symmetric_memory(ctx));
    const auto part_of_longest = [&](const Context& memory, DType dtype) {
        return zeros(memory, {longest}, dtype).slice(0, 0, packed);
    };
    gradients_ = part_of_longest(options_.offloads_sums ? host_memory(ctx) : symmetric, sum_dtype());
    if (options_.zero == 3)
        own_values_ =
            part_of_longest(options_.offloads_values ? host_memory(ctx) : symmetric, store_.dtype());
}

Context DataParallel::host_memory(const Context& ctx) const {
    return options_.host_allocator ? ctx.with_allocator(options_.host_allocator) : ctx;
}

DType DataParallel::sum_dtype() const {
    return options_.bfloat16_sums ? DType::bf16 : accumulator_of(store_.dtype());
}

void DataParallel::make_slots(const Context& symmetric) {
    std::vector<FlatRange> ranges;
    for (const Bucket& bucket : buckets_) ranges.push_back(bucket.range);
    if (options_.has_slots(communicator_.size()))
        slots_ = std::make_unique<GradientSlots>(
            symmetric, store_, ranges, exchange_.get(),
            [this](std::size_t bucket, const Context& exchange, const Tensor& gradients) {
                sum_bucket(exchange, buckets_[bucket], gradients);
            });
    if (!options_.has_value_slots(communicator_.size())) return;
    value_slots_ = std::make_unique<ValueSlots>(
        symmetric, store_.parameters(), store_.dtype(), ranges, exchange_.get(),
        [this](std::size_t bucket, const Context& exchange, const Tensor& values) {
            gather_own_values(exchange, buckets_[bucket], values);
        });
}

std::int64_t DataParallel::own_elements() const {
    return gradients_.elements();
}

std::size_t DataParallel::gradient_bytes() const {
    if (slots_) return gradients_.bytes() + slots_->bytes();
    return store_.gradients().bytes() + (is_sharded() ? gradients_.bytes() : 0);
}

BackwardHooks DataParallel::start_micro_step(const Context& ctx, std::int64_t micro_step,
                                             std::int64_t micro_steps, const DropoutKey& step) {
    BackwardHooks hooks;
    if (slots_) {
        adds_ = micro_step > 0;
        if (adds_ && options_.bfloat16_sums) {
            check(step.training, "data parallel: micro-step ", micro_step,
                  " without the step's key; expected one, which rounds sums in bfloat16");
            rounding_ = step.at(sum_rounding).at(static_cast<std::uint64_t>(micro_step));
        }
        hooks = slots_->start_pass(ctx, micro_step == 0);
    } else {
        if (micro_step == 0) store_.reset_gradients();
        if (communicator_.size() > 1 && !ctx.is_planning() && micro_step + 1 == micro_steps)
            hooks = sum_hooks(ctx);
    }
    if (value_slots_ || frozen_) hooks.before_stage = gather_stages(ctx);
    return hooks;
}

/// The hooks of a pass that completes the gradient block.
BackwardHooks DataParallel::sum_hooks(const Context& ctx) {
    for (Bucket& bucket : buckets_) bucket.pending = bucket.parameters;
    complete_.clear();
    const auto mark_complete = [this](const Parameter& parameter) {
        for (Bucket& bucket : buckets_)
            if (lies_in(bucket.range, parameter) && --bucket.pending == 0) complete_.push_back(&bucket);
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
    const auto local_part = [&](const FlatRange& range) {
        return local.slice(0, range.begin - bucket.range.begin, range.length);
    };
    const auto keep = [&](const OwnPart& part) {
        const Tensor packed = gradients_.slice(0, part.packed, part.range.length);
        const Tensor summed = local_part(part.range);
        if (!adds_) {
            copy(exchange, packed, summed);
        } else if (options_.bfloat16_sums) {
            add_rounded(exchange, packed, summed, rounding_, part.range.begin);
        } else {
            axpy(exchange, packed, 1.0, summed);
        }
    };
    if (!is_sharded()) {
        communicator_.all_reduce(exchange, local);
        if (slots_) std::ranges::for_each(bucket.own, keep);
        return;
    }
    auto own = bucket.own.begin();
    if (bucket.shards.equal_parts > 0) {
        const Tensor packed = gradients_.slice(0, own->packed, own->range.length);
        // Only the device's memory can, in the exchange's dtype.
        const bool receives = !adds_ && !options_.offloads_sums && !options_.bfloat16_sums;
        communicator_.reduce_scatter(exchange, local_part(bucket.shards.equal_range()),
                                     receives ? packed : local_part(own->range));
        if (!receives) keep(*own);
        ++own;
    }
    if (const FlatRange others = bucket.shards.other_range(); others.length > 0)
        communicator_.all_reduce(exchange, local_part(others));
    std::for_each(own, bucket.own.end(), keep);
}

void DataParallel::finish_gradients(const Context& ctx) {
    if ((communicator_.size() == 1 && !slots_) || ctx.is_planning()) return;
    for (const Bucket& bucket : buckets_)
        check(bucket.pending == 0, "data parallel: ", bucket.pending, " gradients of elements ",
              bucket.range.begin, " to ", bucket.range.end(), " were not reported as complete");
    sum_complete_buckets(ctx);
    exchange_->join(ctx);
    if (slots_) slots_->finish();
}

void DataParallel::sum(const Context& ctx, const Tensor& x) const {
    if (communicator_.size() == 1 || ctx.is_planning()) return;
    communicator_.all_reduce(exchange_->after(ctx), x);
    exchange_->join(ctx);
}

ForwardHooks DataParallel::overlap_gather_with_forward(const Context& ctx) {
    if (value_slots_) release_values();
    if (frozen_) frozen_->release();
    const bool gathers_now = !value_slots_ && is_sharded() && !ctx.is_planning();
    if (gathers_now) start_gathering(ctx);
    const StageHook wait = gathers_now ? wait_for_gathered(ctx) : StageHook();
    if (!value_slots_ && !frozen_) return {.before_stage = wait};
    return {.before_stage = [wait, gather = gather_stages(ctx)](std::size_t stage,
                                                                std::optional<std::size_t> next) {
        if (wait) wait(stage, next);
        gather(stage, next);
    }};
}

StageHook DataParallel::wait_for_gathered(const Context& ctx) {
    next_bucket_ = 0;
    return [this, ctx](std::size_t stage, std::optional<std::size_t>) {
        for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].first_stage <= stage; ++next_bucket_)
            if (const auto& gathered = buckets_[next_bucket_].gathered) gathered->wait_in(ctx.stream());
    };
}

StageHook DataParallel::gather_stages(const Context& ctx) const {
    return [this, ctx](std::size_t stage, std::optional<std::size_t> next) {
        if (value_slots_) value_slots_->before_stage(ctx, stage, next);
        if (frozen_) frozen_->before_stage(ctx, stage, next);
    };
}

void DataParallel::start_gathering(const Context& ctx) {
    const Context exchange = exchange_->after(ctx);
    for (const Bucket& bucket : buckets_) {
        gather_parts(exchange, communicator_, bucket.shards, slice_of(store_.values(), bucket.range));
        if (bucket.gathered) bucket.gathered->record(exchange.stream());
    }
}

/// Gathers the values of a bucket to `full`.
void DataParallel::gather_own_values(const Context& exchange, const Bucket& bucket,
                                     const Tensor& full) const {
    for (const auto& [range, packed] : bucket.own) {
        copy_part(exchange, full.slice(0, range.begin - bucket.range.begin, range.length),
                  own_values_.slice(0, packed, range.length), options_.offloads_values);
    }
    gather_parts(exchange, communicator_, bucket.shards, full);
}

void DataParallel::gather_values(const Context& ctx) {
    if (ctx.is_planning()) return;
    if (frozen_) frozen_->gather(ctx);
    if (!is_sharded() && !value_slots_) return;
    if (!value_slots_) {
        start_gathering(ctx);
        exchange_->join(ctx);
        return;
    }
    release_values();
    gathered_values_ = zeros(ctx, {store_.flat_elements()}, store_.dtype());
    for (const Bucket& bucket : buckets_)
        gather_own_values(exchange_->after(ctx), bucket, slice_of(gathered_values_, bucket.range));
    exchange_->join(ctx);
    for (const Parameter& parameter : store_.parameters())
        parameter.set_value(gathered_values_.slice(0, parameter.offset(), parameter.padded_elements()));
}

void DataParallel::release_values() {
    if (frozen_) frozen_->release();
    if (!value_slots_) return;
    value_slots_->forget();
    if (!gathered_values_.defined()) return;
    for (const Parameter& parameter : store_.parameters()) parameter.set_value({});
    gathered_values_ = {};
}

DataParallel::HeldSlots DataParallel::held_frozen() const {
    return frozen_ ? frozen_->held() : HeldSlots();
}

void DataParallel::hold_frozen(const Context& ctx, const HeldSlots& held) {
    if (frozen_) frozen_->hold(ctx, held);
}

void DataParallel::forget_frozen() {
    if (frozen_) frozen_->forget();
}

std::size_t DataParallel::bytes_to_gather_values() const {
    const std::size_t own_store =
        value_slots_ ? static_cast<std::size_t>(store_.flat_elements()) * size_of(store_.dtype()) : 0;
    return own_store + (frozen_ ? frozen_->bytes_to_gather() : 0);
}

std::size_t DataParallel::value_bytes() const {
    std::size_t bytes = frozen_ ? frozen_->slot_bytes() : 0;
    if (frozen_ && !options_.offloads_frozen) bytes += frozen_->bytes_at_rest();
    if (!value_slots_) return bytes + store_.values().bytes();
    return bytes + (options_.offloads_values ? 0 : own_values_.bytes()) + value_slots_->bytes();
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
        gather_parts(exchange_->after(ctx), communicator_, bucket.shards, full, numbers_per_64);
        exchange_->join(ctx);
        read(range, full);
    }
    // A backward pass does not write a gradient block's padding, which the gradient norm and blocks of
    // moments include.
    if (!slots_) fill(ctx, memory.slice(0, 0, longest), 0.0);
}

}  // namespace gradtile
