#include <gradtile/train/parallel/internal/frozen_values.h>

#include <algorithm>
#include <utility>

#include <gradtile/core/side_stream.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/parallel/internal/shard_exchange.h>

namespace gradtile {
namespace {

/// Counts the bytes of blocks that an arena holds together.
class BlocksInArena {
  public:
    explicit BlocksInArena(Device device)
        : arena_(Arena::for_planning(device)), inside_(Context(Device::cpu(), 1).plan(arena_)) {}
    void add(std::int64_t numbers, DType dtype) { held_.push_back(empty(inside_, {numbers}, dtype)); }
    std::size_t bytes() const { return arena_->peak_bytes(); }

  private:
    std::shared_ptr<Arena> arena_;
    Context inside_;
    std::vector<Tensor> held_;
};

}  // namespace

/// A flat block and its division into buckets and parts.
struct FrozenValues::Layout {
    Block block;
    std::vector<Parameter> parameters = {};
    DType dtype = DType::f32;
    std::int64_t numbers = 0;
    std::vector<ShardBucket> buckets = {};

    std::vector<FlatRange> bucket_ranges() const {
        std::vector<FlatRange> ranges;
        for (const ShardBucket& bucket : buckets) ranges.push_back(bucket.range);
        return ranges;
    }
};

struct FrozenValues::State {
    Layout layout;
    std::vector<FlatRange> own_ranges = {};
    Tensor own = {};
    std::unique_ptr<ValueSlots> slots = {};
    Tensor gathered = {};  // by gather()
};

FrozenValues::Layout FrozenValues::layout_of(const ParameterStore& store, Block block, int processes) {
    const bool codes = block == Block::codes;
    Layout layout{.block = block,
                  .dtype = codes ? DType::i32 : store.dtype(),
                  .numbers = codes ? store.code_words() : store.flat_elements()};
    for (const Parameter& parameter : store.parameters())
        if (parameter.is_quantized() == codes) layout.parameters.push_back(parameter);
    if (layout.numbers > 0)
        layout.buckets =
            shard_buckets(layout.parameters, layout.numbers, slot_bucket_rule(layout.numbers), processes);
    return layout;
}

FrozenBytes FrozenValues::plan(const Context& dry, const ParameterStore& store, int processes,
                               const DataParallelOptions& options) {
    FrozenBytes bytes;
    BlocksInArena whole(dry.device());
    for (const Block block : blocks) {
        const Layout layout = layout_of(store, block, processes);
        if (layout.numbers == 0) continue;
        const std::int64_t part =
            options.shards_frozen ? largest_shard(layout.buckets, processes) : layout.numbers;
        bytes.at_rest += static_cast<std::size_t>(part) * size_of(layout.dtype);
        bytes.slots +=
            ValueSlots(dry, layout.parameters, layout.dtype, layout.bucket_ranges(), nullptr, {}).bytes();
        whole.add(layout.numbers, layout.dtype);
    }
    bytes.whole = whole.bytes();
    return bytes;
}

FrozenValues::FrozenValues(const Context& ctx, const Context& offloaded, const ParameterStore& store,
                           const Communicator& communicator, const DataParallelOptions& options,
                           const SideStream& exchange)
    : device_(ctx.device()),
      communicator_(communicator),
      exchange_(exchange),
      shards_(options.shards_frozen && communicator.size() > 1),
      offloads_(options.offloads_frozen) {
    const Context symmetric = ctx.with_allocator(communicator.symmetric_memory(ctx));
    for (const Block block : blocks) {
        Layout layout = layout_of(store, block, shards_ ? communicator.size() : 1);
        if (layout.numbers == 0) continue;
        State& state = *states_.emplace_back(std::make_unique<State>(State{.layout = std::move(layout)}));
        const Layout& of = state.layout;
        std::int64_t packed = 0, longest = of.numbers;
        if (shards_) {
            longest = largest_shard(of.buckets, communicator.size());
            for (const ShardBucket& bucket : of.buckets)
                for (const OwnedRange& part : bucket.parts)
                    if (part.owner == communicator.rank()) state.own_ranges.push_back(part.range);
        } else {
            state.own_ranges = {{0, of.numbers}};
        }
        for (const FlatRange& range : state.own_ranges) packed += range.length;
        // Symmetric memory must be allocated in equal sizes by all processes.
        state.own = zeros(offloads_ ? offloaded : symmetric, {longest}, of.dtype).slice(0, 0, packed);
        state.slots = std::make_unique<ValueSlots>(
            symmetric, of.parameters, of.dtype, of.bucket_ranges(), &exchange,
            [this, &state](std::size_t bucket, const Context& context, const Tensor& full) {
                gather_bucket(context, state, bucket, full);
            });
    }
}

FrozenValues::~FrozenValues() = default;

void FrozenValues::gather_bucket(const Context& exchange, const State& state, std::size_t bucket,
                                 const Tensor& full) const {
    const ShardBucket& of = state.layout.buckets[bucket];
    visit_packed(state.own_ranges, of.range, [&](const FlatRange& range, std::int64_t packed) {
        copy_part(exchange, full.slice(0, range.begin - of.range.begin, range.length),
                  state.own.slice(0, packed, range.length), offloads_);
    });
    if (shards_) gather_parts(exchange, communicator_, of, full);
}

void FrozenValues::keep(const Context& ctx, const Parameter& parameter, const Tensor& numbers) {
    forget();
    const State* const state = find(parameter.is_quantized() ? Block::codes : Block::values);
    const std::int64_t first = parameter.offset();
    visit_packed(state->own_ranges, {first, numbers.elements()},
                 [&](const FlatRange& range, std::int64_t packed) {
                     copy(ctx, state->own.slice(0, packed, range.length),
                          numbers.slice(0, range.begin - first, range.length));
                 });
}

void FrozenValues::before_stage(const Context& ctx, std::size_t stage, std::optional<std::size_t> next) {
    for (const auto& state : states_) state->slots->before_stage(ctx, stage, next);
}

FrozenValues::Held FrozenValues::held() const {
    Held held;
    for (const auto& state : states_) held.push_back(state->slots->held());
    return held;
}

void FrozenValues::hold(const Context& ctx, const Held& held) {
    for (std::size_t i = 0; i < held.size(); ++i) states_[i]->slots->hold(ctx, held[i]);
}

void FrozenValues::forget() {
    for (const auto& state : states_) state->slots->forget();
}

void FrozenValues::gather(const Context& ctx) {
    release();
    forget();
    for (const auto& state : states_) {
        const Layout& layout = state->layout;
        state->gathered = empty(ctx, {layout.numbers}, layout.dtype);
        for (std::size_t i = 0; i < layout.buckets.size(); ++i) {
            const FlatRange& range = layout.buckets[i].range;
            gather_bucket(exchange_.after(ctx), *state, i,
                          state->gathered.slice(0, range.begin, range.length));
        }
        for (const Parameter& parameter : layout.parameters)
            parameter.set_value(state->gathered.slice(0, parameter.offset(), numbers_in_block(parameter)));
    }
    exchange_.join(ctx);
}

void FrozenValues::release() {
    for (const auto& state : states_) {
        if (!state->gathered.defined()) continue;
        for (const Parameter& parameter : state->layout.parameters) parameter.set_value({});
        state->gathered = {};
    }
}

std::size_t FrozenValues::bytes_to_gather() const {
    BlocksInArena whole(device_);
    for (const auto& state : states_) whole.add(state->layout.numbers, state->layout.dtype);
    return whole.bytes();
}

const FrozenValues::State* FrozenValues::find(Block block) const {
    const auto found =
        std::ranges::find_if(states_, [&](const auto& state) { return state->layout.block == block; });
    return found == states_.end() ? nullptr : found->get();
}

const std::vector<FlatRange>& FrozenValues::own_ranges(Block block) const {
    return find(block)->own_ranges;
}

const Tensor& FrozenValues::own(Block block) const {
    return find(block)->own;
}

void FrozenValues::read_all(const Context& ctx, Block block, const Read& read) {
    const State& state = *find(block);
    state.slots->forget();
    const Tensor& memory = state.slots->longest();
    for (std::size_t i = 0; i < state.layout.buckets.size(); ++i) {
        const FlatRange& range = state.layout.buckets[i].range;
        const Tensor full = memory.slice(0, 0, range.length);
        gather_bucket(exchange_.after(ctx), state, i, full);
        exchange_.join(ctx);
        read(range, full);
    }
}

std::size_t FrozenValues::bytes_at_rest() const {
    std::size_t sum = 0;
    for (const auto& state : states_) sum += state->own.bytes();
    return sum;
}

std::size_t FrozenValues::slot_bytes() const {
    std::size_t sum = 0;
    for (const auto& state : states_) sum += state->slots->bytes();
    return sum;
}

}  // namespace gradtile
