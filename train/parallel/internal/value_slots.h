#pragma once
/// ValueSlots: memory for the values that a pass reads under ZeRO-3; quantized values are codes.
/// At rest a process has the values of its own shard only. A bucket's whole values have memory, a slot, from
/// the stage before the one that reads them, in which they are gathered from all processes, until another
/// bucket takes the slot.
///
/// Each bucket always has the same slot, so that a pass that is captured in a graph finds its values.
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

class SideStream;

/// How many numbers a parameter has in its flat block: elements, or words of codes.
std::int64_t numbers_in_block(const Parameter& parameter);

class ValueSlots {
  public:
    /// Enqueues the gathering of a bucket's values [bucket elements] on the context's stream.
    using Gather = std::function<void(std::size_t bucket, const Context& exchange, const Tensor& values)>;

    /// `buckets` are contiguous, cut no parameter, and cover a flat block that holds `parameters` as `dtype`:
    /// all values of a store, or all codes. The store has no value block. `memory` allocates the slots here.
    /// Under a planning context passes gather nothing, and `side` may be null; to count bytes() without a
    /// pass, the store may have a value block. All arguments must outlive this object.
    ValueSlots(const Context& memory, std::span<const Parameter> parameters, DType dtype,
               std::span<const FlatRange> buckets, const SideStream* side, Gather gather);
    ~ValueSlots();

    /// The StageHook of forward and backward passes. Parameters of the stage have values in ctx's stream
    /// order when this function returns, and the values of `next` are on their way.
    void before_stage(const Context& ctx, std::size_t stage, std::optional<std::size_t> next);
    /// Takes all values away, because an update has changed them.
    void forget();
    /// The bucket in each slot; empty where there is none.
    using Held = std::vector<std::optional<std::size_t>>;
    Held held() const;
    /// Gathers what the slots held then, unless they hold it now, before further work on ctx's stream.
    void hold(const Context& ctx, const Held& held);
    /// The longest slot's memory, which holds nothing after forget().
    const Tensor& longest() const;
    /// Bytes of all slots.
    std::size_t bytes() const;

  private:
    struct Bucket;
    struct Slot;
    void assign_slots();
    void gather(const Context& ctx, Bucket& bucket);
    void wait_for(const Context& ctx, Bucket& bucket) const;
    void evict(Slot& slot);

    Context memory_;
    DType dtype_;
    const SideStream* side_;
    Gather gather_;
    std::vector<Bucket> buckets_;
    std::vector<Slot> slots_;
};

}  // namespace gradtile
