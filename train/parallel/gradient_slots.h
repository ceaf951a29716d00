#pragma once
/// GradientSlots: the memory in which a process computes gradients whose sums it keeps elsewhere: under
/// ZeRO-2 and 3, in host memory, or in bfloat16. A bucket's gradients have memory, a slot, from their first
/// contribution in a pass until their exchange with other processes. Then another bucket uses the slot.
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/pass_hooks.h>

namespace gradtile {

class SideStream;

class GradientSlots {
  public:
    /// Enqueues the exchange of a bucket's gradients [bucket elements] on the context's stream.
    using Exchange =
        std::function<void(std::size_t bucket, const Context& exchange, const Tensor& gradients)>;

    /// `buckets` are contiguous, cut no parameter, and cover the flat blocks of `store`, which has no
    /// gradient block. `memory` allocates the longest bucket's slot here, and the others when a pass first
    /// needs them. Under a planning context passes exchange nothing, and `side` may be null. All arguments
    /// must outlive this object.
    GradientSlots(const Context& memory, const ParameterStore& store, std::span<const FlatRange> buckets,
                  const SideStream* side, Exchange exchange);
    ~GradientSlots();

    /// Starts a forward and backward pass, and returns the hooks for the backward pass. `begins_step`: ctx's
    /// stream waits for the exchanges of all earlier passes. The first contribution to each gradient
    /// overwrites. Complete buckets are exchanged before each attention, and the last ones as soon as all
    /// gradients are complete.
    BackwardHooks start_pass(const Context& ctx, bool begins_step);
    /// Ends a step's last pass. Throws Error if a gradient was not reported as complete.
    void finish();

    /// Memory of the longest bucket, whose contents last from the end of a pass to the next pass.
    const Tensor& longest() const;
    /// Bytes of all slots.
    std::size_t bytes() const;

  private:
    struct Slot;
    struct Bucket;
    Bucket& bucket_of(const Parameter& parameter);
    void find_gaps();
    Slot& add_slot(std::int64_t elements);
    Slot& free_slot(const Bucket& bucket);
    void take_slot(Bucket& bucket);
    void provide(const Parameter& parameter);
    void complete(const Parameter& parameter);
    void exchange_complete_buckets();
    void exchange(Bucket& bucket);
    void wait_for_exchange(const Bucket& bucket) const;
    Tensor view(const Bucket& bucket, const FlatRange& range) const;

    Context memory_;
    const ParameterStore& store_;
    const SideStream* side_;
    Exchange exchange_;
    std::vector<Bucket> buckets_;
    std::vector<std::unique_ptr<Slot>> slots_;
    std::optional<Context> pass_;    // the running pass's context
    std::vector<Bucket*> complete_;  // complete buckets that were not exchanged
    std::size_t open_ = 0;           // buckets with incomplete gradients
    std::int64_t exchanges_ = 0;     // counts all exchanges
};

}  // namespace gradtile
