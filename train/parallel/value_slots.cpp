#include <gradtile/train/parallel/internal/value_slots.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <gradtile/core/quantized_weights.h>
#include <gradtile/core/side_stream.h>

namespace gradtile {

struct ValueSlots::Bucket {
    FlatRange range;
    std::vector<Parameter> parameters = {};
    std::size_t first_stage = 0, last_stage = 0;
    std::size_t slot = 0;
    std::unique_ptr<cuda::Event> gathered = {};  // on a GPU
    bool is_awaited = false;                     // the pass's stream has waited for `gathered`

    bool is_read_in(std::size_t stage) const { return stage == first_stage || stage == last_stage; }
    /// Whether both have values at one time: in a forward pass from the stage before the first until the last
    /// one, in a backward pass from the stage after the last until the first one.
    bool overlaps(const Bucket& other) const {
        const auto begins_before_end = [](const Bucket& a, const Bucket& b) {
            return a.first_stage <= b.last_stage + 1;
        };
        return begins_before_end(*this, other) && begins_before_end(other, *this);
    }
};

struct ValueSlots::Slot {
    Tensor memory;
    std::vector<std::size_t> buckets = {};  // those that take turns
    Bucket* held = nullptr;
    bool is_planned = false;  // a dry run has gathered nothing
};

std::int64_t numbers_in_block(const Parameter& parameter) {
    return parameter.is_quantized() ? quantized_layout(parameter.format(), parameter.shape().elements()).words
                                    : parameter.padded_elements();
}

ValueSlots::ValueSlots(const Context& memory, std::span<const Parameter> parameters, DType dtype,
                       std::span<const FlatRange> buckets, const SideStream* side, Gather gather)
    : memory_(memory), dtype_(dtype), side_(side), gather_(std::move(gather)) {
    for (const FlatRange& range : buckets) {
        Bucket& bucket = buckets_.emplace_back(Bucket{.range = range});
        for (const Parameter& parameter : parameters)
            if (parameter.offset() >= range.begin && parameter.offset() < range.end())
                bucket.parameters.push_back(parameter);
        bucket.first_stage = bucket.parameters.front().first_stage();
        for (const Parameter& parameter : bucket.parameters)
            bucket.last_stage = std::max(bucket.last_stage, parameter.last_stage());
        if (memory.device().is_cuda() && !memory.is_planning())
            bucket.gathered = std::make_unique<cuda::Event>(memory.device());
    }
    assign_slots();
}

ValueSlots::~ValueSlots() {
    forget();
}

/// Gives each bucket the first slot whose buckets it does not overlap. Longer buckets choose first, so a slot
/// is as long as the first of its buckets.
void ValueSlots::assign_slots() {
    std::vector<std::size_t> order(buckets_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [&](std::size_t i) { return buckets_[i].range.length; });
    for (const std::size_t i : order) {
        const auto is_free = [&](const Slot& slot) {
            return std::ranges::none_of(slot.buckets,
                                        [&](std::size_t j) { return buckets_[j].overlaps(buckets_[i]); });
        };
        auto slot = std::ranges::find_if(slots_, is_free);
        if (slot == slots_.end())
            slot = slots_.insert(slot, Slot{.memory = zeros(memory_, {buckets_[i].range.length}, dtype_)});
        slot->buckets.push_back(i);
        buckets_[i].slot = static_cast<std::size_t>(slot - slots_.begin());
    }
}

void ValueSlots::evict(Slot& slot) {
    if (slot.held == nullptr) return;
    for (const Parameter& parameter : slot.held->parameters) parameter.set_value({});
    slot.held = nullptr;
}

void ValueSlots::forget() {
    for (Slot& slot : slots_) evict(slot);
}

void ValueSlots::gather(const Context& ctx, Bucket& bucket) {
    Slot& slot = slots_[bucket.slot];
    if (slot.held == &bucket && (!slot.is_planned || ctx.is_planning())) return;
    evict(slot);
    const Tensor values = slot.memory.slice(0, 0, bucket.range.length);
    if (!ctx.is_planning()) {
        const Context exchange = side_->after(ctx);  // the slot's last readers are on ctx's stream already
        gather_(static_cast<std::size_t>(&bucket - buckets_.data()), exchange, values);
        if (bucket.gathered) bucket.gathered->record(exchange.stream());
        bucket.is_awaited = false;
    }
    // Only now: an exchange that another process's loss ends leaves no values.
    slot.held = &bucket;
    slot.is_planned = ctx.is_planning();
    for (const Parameter& parameter : bucket.parameters)
        parameter.set_value(
            values.slice(0, parameter.offset() - bucket.range.begin, numbers_in_block(parameter)));
}

void ValueSlots::wait_for(const Context& ctx, Bucket& bucket) const {
    if (bucket.gathered && !ctx.is_planning() && !std::exchange(bucket.is_awaited, true))
        bucket.gathered->wait_in(ctx.stream());
}

void ValueSlots::before_stage(const Context& ctx, std::size_t stage, std::optional<std::size_t> next) {
    for (Bucket& bucket : buckets_) {
        if (!bucket.is_read_in(stage)) continue;
        gather(ctx, bucket);
        wait_for(ctx, bucket);
    }
    if (!next) return;
    for (Bucket& bucket : buckets_)
        if (bucket.is_read_in(*next)) gather(ctx, bucket);
}

ValueSlots::Held ValueSlots::held() const {
    Held held;
    for (const Slot& slot : slots_)
        held.push_back(slot.held && !slot.is_planned
                           ? std::optional(static_cast<std::size_t>(slot.held - buckets_.data()))
                           : std::nullopt);
    return held;
}

void ValueSlots::hold(const Context& ctx, const Held& held) {
    for (const std::optional<std::size_t>& i : held) {
        if (!i) continue;
        gather(ctx, buckets_[*i]);
        wait_for(ctx, buckets_[*i]);
    }
}

const Tensor& ValueSlots::longest() const {
    return slots_.front().memory;  // the longest bucket chose first
}

std::size_t ValueSlots::bytes() const {
    std::size_t sum = 0;
    for (const Slot& slot : slots_) sum += slot.memory.bytes();
    return sum;
}

}  // namespace gradtile
