#include <gradtile/train/parallel/gradient_slots.h>

#include <algorithm>
#include <utility>

#include <gradtile/core/side_stream.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {

struct GradientSlots::Slot {
    Tensor memory;
    bool is_taken = false;
    Bucket* last = nullptr;      // the bucket that last left the slot
    std::int64_t exchange = -1;  // the number of that bucket's exchange
};

struct GradientSlots::Bucket {
    FlatRange range;
    std::vector<FlatRange> gaps = {};  // elements between parameters, which no pass writes
    std::int64_t parameters = 0;       // how many parameters are in the bucket
    std::int64_t pending = 0;          // how many of these have no complete gradient yet
    Slot* slot = nullptr;              // while the bucket has a slot
    Slot* assigned = nullptr;          // the slot of the pass before; all passes have the same order
    std::unique_ptr<cuda::Event> exchanged = {};  // on a GPU
    bool is_exchanging = false;                   // the pass's stream may not have waited for `exchanged`
};

GradientSlots::GradientSlots(const Context& memory, const ParameterStore& store,
                             std::span<const FlatRange> buckets, const SideStream* side, Exchange exchange)
    : memory_(memory), store_(store), side_(side), exchange_(std::move(exchange)) {
    for (const FlatRange& range : buckets) buckets_.push_back({.range = range});
    find_gaps();
    std::int64_t longest = 0;
    for (Bucket& bucket : buckets_) {
        longest = std::max(longest, bucket.range.length);
        if (memory.device().is_cuda() && !memory.is_planning())
            bucket.exchanged = std::make_unique<cuda::Event>(memory.device());
    }
    add_slot(longest);
    store.set_gradient_provider([this](const Parameter& parameter) { provide(parameter); });
}

GradientSlots::~GradientSlots() {
    store_.set_gradient_provider({});
}

void GradientSlots::find_gaps() {
    for (Bucket& bucket : buckets_) {
        std::int64_t end = bucket.range.begin;
        for (const Parameter& parameter : store_.parameters()) {
            const std::int64_t begin = parameter.offset();
            if (begin < bucket.range.begin || begin >= bucket.range.end()) continue;
            if (begin > end) bucket.gaps.push_back({end, begin - end});
            end = begin + parameter.shape().elements();
            ++bucket.parameters;
        }
        if (end < bucket.range.end()) bucket.gaps.push_back({end, bucket.range.end() - end});
    }
}

GradientSlots::Bucket& GradientSlots::bucket_of(const Parameter& parameter) {
    const auto behind = std::ranges::upper_bound(buckets_, parameter.offset(), {},
                                                 [](const Bucket& bucket) { return bucket.range.begin; });
    return *std::prev(behind);
}

GradientSlots::Slot& GradientSlots::add_slot(std::int64_t elements) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->memory = zeros(memory_, {elements}, accumulator_of(store_.dtype()));
    return *slots_.back();
}

/// Returns the smallest free slot that is long enough, and of several the one that was exchanged first.
GradientSlots::Slot& GradientSlots::free_slot(const Bucket& bucket) {
    if (bucket.assigned != nullptr && !bucket.assigned->is_taken) return *bucket.assigned;
    Slot* best = nullptr;
    for (const auto& slot : slots_) {
        if (slot->is_taken || slot->memory.elements() < bucket.range.length) continue;
        const auto rank_of = [](const Slot& s) { return std::pair{s.memory.elements(), s.exchange}; };
        if (best == nullptr || rank_of(*slot) < rank_of(*best)) best = slot.get();
    }
    return best != nullptr ? *best : add_slot(bucket.range.length);
}

void GradientSlots::take_slot(Bucket& bucket) {
    if (bucket.slot != nullptr) return;
    bucket.slot = bucket.assigned = &free_slot(bucket);
    bucket.slot->is_taken = true;
    if (bucket.slot->last != nullptr) wait_for_exchange(*bucket.slot->last);
    for (const FlatRange& gap : bucket.gaps) fill(*pass_, view(bucket, gap), 0.0);
}

Tensor GradientSlots::view(const Bucket& bucket, const FlatRange& range) const {
    return bucket.slot->memory.slice(0, range.begin - bucket.range.begin, range.length);
}

void GradientSlots::wait_for_exchange(const Bucket& bucket) const {
    if (bucket.is_exchanging && bucket.exchanged) bucket.exchanged->wait_in(pass_->stream());
}

BackwardHooks GradientSlots::start_pass(const Context& ctx, bool begins_step) {
    pass_ = ctx;
    complete_.clear();
    open_ = 0;
    for (const auto& slot : slots_) slot->is_taken = false;
    for (Bucket& bucket : buckets_) {
        bucket.slot = nullptr;
        if (begins_step) bucket.is_exchanging = false;
        bucket.pending = bucket.parameters;
        if (bucket.pending > 0) ++open_;
    }
    for (const Parameter& parameter : store_.parameters()) parameter.set_gradient({});
    store_.reset_gradients();
    return {.gradient_complete = [this](const Parameter& parameter) { complete(parameter); },
            .before_attention = [this] { exchange_complete_buckets(); }};
}

void GradientSlots::provide(const Parameter& parameter) {
    check(pass_.has_value(), "gradient slots: a contribution to the gradient of ", parameter.name(),
          " outside a pass");
    Bucket& bucket = bucket_of(parameter);
    take_slot(bucket);
    parameter.set_gradient(view(bucket, {parameter.offset(), parameter.padded_elements()}));
}

void GradientSlots::complete(const Parameter& parameter) {
    const Context& ctx = *pass_;
    ready_to_add(ctx, parameter.begin_gradient_write());  // zeros if there was no contribution
    parameter.set_gradient({});
    Bucket& bucket = bucket_of(parameter);
    if (--bucket.pending > 0) return;
    complete_.push_back(&bucket);
    --open_;
    if (open_ == 0) exchange_complete_buckets();
}

void GradientSlots::exchange_complete_buckets() {
    for (Bucket* bucket : complete_) exchange(*bucket);
    complete_.clear();
}

void GradientSlots::exchange(Bucket& bucket) {
    if (!pass_->is_planning()) {
        const Context exchange = side_->after(*pass_);
        exchange_(static_cast<std::size_t>(&bucket - buckets_.data()), exchange, view(bucket, bucket.range));
        if (bucket.exchanged) bucket.exchanged->record(exchange.stream());
        bucket.is_exchanging = true;
    }
    bucket.slot->is_taken = false;
    bucket.slot->last = &bucket;
    bucket.slot->exchange = exchanges_++;
    bucket.slot = nullptr;
}

void GradientSlots::finish() {
    for (const Bucket& bucket : buckets_)
        check(bucket.pending == 0, "gradient slots: ", bucket.pending, " gradients of elements ",
              bucket.range.begin, " to ", bucket.range.end(), " were not reported as complete");
    pass_.reset();
}

const Tensor& GradientSlots::longest() const {
    return slots_.front()->memory;
}

std::size_t GradientSlots::bytes() const {
    std::size_t sum = 0;
    for (const auto& slot : slots_) sum += slot->memory.bytes();
    return sum;
}

}  // namespace gradtile
