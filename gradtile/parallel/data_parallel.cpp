#include <gradtile/parallel/data_parallel.h>

#include <algorithm>
#include <utility>

#include <gradtile/core/event.h>
#include <gradtile/core/side_stream.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

Tensor part_of(const Tensor& flat, const FlatRange& range) {
    return flat.slice(0, range.begin, range.length);
}

bool overlap(const FlatRange& range, const Parameter& parameter) {
    return parameter.offset() < range.end() &&
           parameter.offset() + parameter.shape().elements() > range.begin;
}

}  // namespace

std::vector<FlatRange> cut_into_buckets(std::span<const Parameter> parameters, std::int64_t elements,
                                        std::int64_t at_least, std::int64_t multiple) {
    std::vector<FlatRange> buckets;
    std::int64_t begin = 0;
    const auto cut_at = [&](std::int64_t end) {
        buckets.push_back({begin, end - begin});
        begin = end;
    };
    for (const Parameter& parameter : parameters) {
        const std::int64_t border = std::min(rounded_up(parameter.offset(), multiple), elements);
        if (border - begin >= at_least) cut_at(border);
    }
    if (begin < elements) cut_at(elements);
    return buckets;
}

std::int64_t flat_multiple(int parts) {
    return parameter_alignment * parts;
}

/// A bucket, and how far it is in this step.
struct DataParallel::Bucket {
    FlatRange range;
    FlatRange packed;                            // of this process's part, when sharded
    std::int64_t parameters = 0;                 // that have elements in it
    std::int64_t waiting_for = 0;                // of them
    std::unique_ptr<cuda::Event> gathered = {};  // its values are there; on a GPU
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
    std::int64_t packed = 0;
    for (const FlatRange& range :
         cut_into_buckets(store.parameters(), store.flat_elements(), options.bucket_elements, multiple)) {
        Bucket& bucket = buckets_.emplace_back();
        bucket.range = range;
        bucket.packed = {packed, range.length / processes};
        packed = bucket.packed.end();
        for (const Parameter& parameter : store.parameters())
            if (overlap(range, parameter)) ++bucket.parameters;
        if (!options_.sharded) continue;
        own_ranges_.push_back(own_part(range));
        if (ctx.device().is_cuda()) bucket.gathered = std::make_unique<cuda::Event>(ctx.device());
    }
    if (!options_.sharded) return;
    gradients_ =
        zeros(ctx.with_allocator(communicator.symmetric_memory(ctx)), {packed}, store.gradients().dtype());
}

DataParallel::~DataParallel() = default;

FlatRange DataParallel::own_part(const FlatRange& bucket) const {
    const std::int64_t length = bucket.length / communicator_.size();
    return {bucket.begin + communicator_.rank() * length, length};
}

std::int64_t DataParallel::own_elements() const {
    return gradients_.elements();
}

BackwardHooks DataParallel::sum_beside_backward(const Context& ctx) {
    if (buckets_.empty() || ctx.is_planning()) return {};
    for (Bucket& bucket : buckets_) bucket.waiting_for = bucket.parameters;
    complete_.clear();
    const auto note_complete = [this](const Parameter& parameter) {
        // Backward finishes the last parameters first, and so do the sums of those that span several buckets.
        for (std::size_t i = buckets_.size(); i-- > 0;)
            if (overlap(buckets_[i].range, parameter) && --buckets_[i].waiting_for == 0)
                complete_.push_back(&buckets_[i]);
    };
    return {.gradient_complete = note_complete,
            .before_attention = [this, ctx] { sum_complete_buckets(ctx); }};
}

void DataParallel::sum_complete_buckets(const Context& ctx) {
    for (const Bucket* bucket : complete_) sum_bucket(ctx, *bucket);
    complete_.clear();
}

void DataParallel::sum_bucket(const Context& ctx, const Bucket& bucket) {
    const Context exchange = exchange_->after(ctx);
    const Tensor of_process = part_of(store_.gradients(), bucket.range);
    if (!is_sharded()) {
        communicator_.all_reduce(exchange, of_process);
        return;
    }
    communicator_.reduce_scatter(exchange, of_process, part_of(gradients_, bucket.packed));
}

void DataParallel::finish_gradients(const Context& ctx) {
    if (buckets_.empty() || ctx.is_planning()) return;
    for (const Bucket& bucket : buckets_)
        check(bucket.waiting_for == 0, "data parallel: ", bucket.waiting_for, " gradients of elements ",
              bucket.range.begin, " to ", bucket.range.end(), " were not announced");
    sum_complete_buckets(ctx);
    exchange_->join(ctx);
}

void DataParallel::sum(const Context& ctx, const Tensor& x) const {
    if (buckets_.empty() || ctx.is_planning()) return;
    communicator_.all_reduce(exchange_->after(ctx), x);
    exchange_->join(ctx);
}

ForwardHooks DataParallel::gather_beside_forward(const Context& ctx) {
    if (!is_sharded() || ctx.is_planning()) return {};
    start_gathering(ctx);
    waited_for_ = 0;
    const auto before_use = [this, ctx](const Parameter& last) {
        const std::int64_t end = last.offset() + last.padded_value().elements();
        for (; waited_for_ < buckets_.size() && buckets_[waited_for_].range.begin < end; ++waited_for_)
            if (const auto& gathered = buckets_[waited_for_].gathered) gathered->wait_in(ctx.stream());
    };
    return {.before_use = before_use};
}

void DataParallel::start_gathering(const Context& ctx) {
    const Context exchange = exchange_->after(ctx);
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
        communicator_.all_gather(exchange, part_of(store_.values(), own_ranges_[i]),
                                 part_of(store_.values(), buckets_[i].range));
        if (buckets_[i].gathered) buckets_[i].gathered->record(exchange.stream());
    }
}

void DataParallel::gather_values(const Context& ctx) {
    if (!is_sharded() || ctx.is_planning()) return;
    start_gathering(ctx);
    exchange_->join(ctx);
}

void DataParallel::unpack(const Context& ctx, const Tensor& packed, const Tensor& whole) const {
    const Context exchange = exchange_->after(ctx);
    for (std::size_t i = 0; i < buckets_.size(); ++i)
        communicator_.all_gather(exchange, part_of(packed, buckets_[i].packed),
                                 part_of(whole, buckets_[i].range));
    exchange_->join(ctx);
}

void DataParallel::pack(const Context& ctx, const Tensor& whole, const Tensor& packed) const {
    for (std::size_t i = 0; i < buckets_.size(); ++i)
        copy(ctx, part_of(packed, buckets_[i].packed), part_of(whole, own_ranges_[i]));
}

}  // namespace gradtile
