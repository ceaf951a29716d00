#include <gradtile/train/parallel/gradient_slots.h>

#include <algorithm>
#include <utility>

#include <gradtile/core/side_stream.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

FlatRange common_part(const FlatRange& a, const FlatRange& b) {
    const std::int64_t begin = std::max(a.begin, b.begin);
    return {begin, std::max<std::int64_t>(0, std::min(a.end(), b.end()) - begin)};
}

FlatRange hull(const FlatRange& a, const FlatRange& b) {
    const std::int64_t begin = std::min(a.begin, b.begin);
    return {begin, std::max(a.end(), b.end()) - begin};
}

/// A parameter's elements, without and with the rows that pad it.
FlatRange elements_of(const Parameter& parameter) {
    return {parameter.offset(), parameter.shape().elements()};
}
FlatRange padded_elements_of(const Parameter& parameter) {
    return {parameter.offset(), parameter.padded_value().elements()};
}

}  // namespace

struct GradientSlots::Slot {
    Tensor memory;
    bool is_taken = false;
    Bucket* last = nullptr;      // the bucket that last left the slot
    std::int64_t exchange = -1;  // the number of that bucket's exchange
};

/// A part of a cut parameter's gradient that is exchanged with another bucket than the parameter's home.
struct GradientSlots::Piece {
    FlatRange range;
    std::size_t bucket = 0;
    std::int64_t begin = 0;  // in cut_parts_
};

struct GradientSlots::Bucket {
    FlatRange range;
    FlatRange held;                    // what a slot holds: the bucket and all of its home parameters
    std::vector<FlatRange> gaps = {};  // elements between parameters, which no pass writes
    std::vector<Piece> pieces = {};    // parts that come from other homes
    std::int64_t parameters = 0;       // how many parameters have elements in the bucket
    std::int64_t pending = 0;          // how many of these have no complete gradient yet
    Slot* slot = nullptr;              // while the bucket has a slot
    Slot* assigned = nullptr;          // the slot of the pass before; all passes have the same order
    std::unique_ptr<cuda::Event> exchanged = {};  // on a GPU
    bool is_exchanging = false;                   // the pass's stream may not have waited for `exchanged`
};

/// Where a parameter's gradient is computed.
struct GradientSlots::Home {
    std::size_t bucket = 0;
    std::size_t first = 0, last = 0;  // the buckets that hold its elements
    std::vector<Piece> pieces = {};   // its parts in other buckets
};

GradientSlots::GradientSlots(const Context& memory, const ParameterStore& store,
                             std::span<const FlatRange> buckets, const SideStream* side, Exchange exchange)
    : memory_(memory), store_(store), side_(side), exchange_(std::move(exchange)) {
    assign_homes(buckets);
    std::int64_t longest = 0;
    for (Bucket& bucket : buckets_) {
        longest = std::max(longest, bucket.held.length);
        if (memory.device().is_cuda() && !memory.is_planning())
            bucket.exchanged = std::make_unique<cuda::Event>(memory.device());
    }
    add_slot(longest);
    store.set_gradient_provider([this](const Parameter& parameter) { provide(parameter); });
}

GradientSlots::~GradientSlots() {
    store_.set_gradient_provider({});
}

void GradientSlots::assign_homes(std::span<const FlatRange> ranges) {
    for (const FlatRange& range : ranges) buckets_.push_back({.range = range, .held = range});
    std::int64_t cut = 0;
    std::vector<std::int64_t> covered;  // where the gap that follows the parameters so far begins
    for (const FlatRange& range : ranges) covered.push_back(range.begin);
    for (const Parameter& parameter : store_.parameters()) {
        const FlatRange own = elements_of(parameter);
        const auto part_in = [&](std::size_t i) { return common_part(own, ranges[i]); };
        Home& home = homes_.emplace_back();
        while (part_in(home.first).length == 0) ++home.first;
        home.bucket = home.last = home.first;
        for (; home.last + 1 < ranges.size() && part_in(home.last + 1).length > 0; ++home.last)
            if (part_in(home.last + 1).length > part_in(home.bucket).length) home.bucket = home.last + 1;
        buckets_[home.bucket].held = hull(buckets_[home.bucket].held, padded_elements_of(parameter));
        for (std::size_t i = home.first; i <= home.last; ++i) {
            ++buckets_[i].parameters;
            const FlatRange part = part_in(i);
            if (part.begin > covered[i]) buckets_[i].gaps.push_back({covered[i], part.begin - covered[i]});
            covered[i] = part.end();
            if (i == home.bucket) continue;
            const Piece piece{.range = part, .bucket = i, .begin = cut};
            cut += rounded_up(part.length, parameter_alignment);
            buckets_[i].pieces.push_back(piece);
            home.pieces.push_back(piece);
        }
    }
    for (std::size_t i = 0; i < ranges.size(); ++i)
        if (covered[i] < ranges[i].end())
            buckets_[i].gaps.push_back({covered[i], ranges[i].end() - covered[i]});
    if (cut > 0) cut_parts_ = zeros(memory_, {cut}, accumulator_of(store_.dtype()));
}

const GradientSlots::Home& GradientSlots::home_of(const Parameter& parameter) const {
    const auto found =
        std::ranges::lower_bound(store_.parameters(), parameter.offset(), {}, &Parameter::offset);
    return homes_[static_cast<std::size_t>(found - store_.parameters().begin())];
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
        if (slot->is_taken || slot->memory.elements() < bucket.held.length) continue;
        const auto rank_of = [](const Slot& s) { return std::pair{s.memory.elements(), s.exchange}; };
        if (best == nullptr || rank_of(*slot) < rank_of(*best)) best = slot.get();
    }
    return best != nullptr ? *best : add_slot(bucket.held.length);
}

void GradientSlots::take_slot(Bucket& bucket) {
    if (bucket.slot != nullptr) return;
    bucket.slot = bucket.assigned = &free_slot(bucket);
    bucket.slot->is_taken = true;
    if (bucket.slot->last != nullptr) wait_for_exchange(*bucket.slot->last);
    for (const FlatRange& gap : bucket.gaps) fill(*pass_, view(bucket, gap), 0.0);
}

Tensor GradientSlots::view(const Bucket& bucket, const FlatRange& range) const {
    return bucket.slot->memory.slice(0, range.begin - bucket.held.begin, range.length);
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
    Bucket& home = buckets_[home_of(parameter).bucket];
    take_slot(home);
    parameter.set_gradient(view(home, padded_elements_of(parameter)));
}

void GradientSlots::complete(const Parameter& parameter) {
    const Context& ctx = *pass_;
    ready_to_add(ctx, parameter.begin_gradient_write());  // zeros if there was no contribution
    const Home& home = home_of(parameter);
    for (const Piece& piece : home.pieces) {
        wait_for_exchange(buckets_[piece.bucket]);  // of the pass before, which reads the same memory
        copy(ctx, cut_parts_.slice(0, piece.begin, piece.range.length),
             view(buckets_[home.bucket], piece.range));
    }
    parameter.set_gradient({});
    for (std::size_t i = home.last + 1; i-- > home.first;) {
        if (--buckets_[i].pending > 0) continue;
        complete_.push_back(&buckets_[i]);
        --open_;
    }
    if (open_ == 0) exchange_complete_buckets();
}

void GradientSlots::exchange_complete_buckets() {
    for (Bucket* bucket : complete_) exchange(*bucket);
    complete_.clear();
}

void GradientSlots::exchange(Bucket& bucket) {
    take_slot(bucket);  // a bucket that is nobody's home has none yet
    const Context exchange = pass_->is_planning() ? *pass_ : side_->after(*pass_);
    for (const Piece& piece : bucket.pieces)
        copy(exchange, view(bucket, piece.range), cut_parts_.slice(0, piece.begin, piece.range.length));
    if (!pass_->is_planning()) {
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
    std::size_t sum = cut_parts_.defined() ? cut_parts_.bytes() : 0;
    for (const auto& slot : slots_) sum += slot->memory.bytes();
    return sum;
}

}  // namespace gradtile
