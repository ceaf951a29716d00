#pragma once
/// DataParallel: the exchanges in a training step between processes that hold the same model. Gradients are
/// summed over processes bucket by bucket, overlapping the backward pass's attention kernels. Each process
/// divides its loss by all processes' target count, so the sum is the average.
///
/// Replicated: every process receives all sums and updates all parameters. Sharded (ZeRO: Rajbhandari et al.
/// 2020, "ZeRO: memory optimizations toward training trillion parameter models"): a process receives its own
/// shard's sums and updates that shard; the values are gathered when the next step starts, overlapping its
/// forward pass. With ZeRO-1 a process has memory for its own gradients of all parameters, adds up those of a
/// step's micro-steps, and sums once. With ZeRO-2 it has memory for some buckets only (GradientSlots), and
/// adds every micro-step's sums to its shard. Gradients that are added up in other memory than the device's,
/// or in bfloat16, are computed in such slots in float32 at every level, also by a single process. With
/// ZeRO-3 it also keeps only its shard's values, and every pass gathers those that it reads, one stage ahead
/// (internal/value_slots.h). Values that are in other memory than the device's are brought to it in the same
/// way, also by a single process. Frozen parameters have no gradients, and are gathered or brought as values
/// are (internal/frozen_values.h). Some parameters must be updated whole by one process. Their gradients are
/// summed in every process, and the owners broadcast the new values. This method allows shards with unequal
/// lengths, and costs three transfers per bucket instead of two.
///
/// On a GPU exchanges run on a separate stream and can be captured with the step; on the CPU a call blocks
/// until the exchange is complete.
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <gradtile/core/dropout_key.h>
#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/pass_hooks.h>
#include <gradtile/train/parallel/communicator.h>
#include <gradtile/train/parallel/gradient_slots.h>
#include <gradtile/train/parallel/shard_layout.h>

namespace gradtile {

class FrozenValues;
class SideStream;
class ValueSlots;

struct DataParallelOptions {
    /// ZeRO level: 1 shards masters and moments, 2 the summed gradients as well, 3 the values, too.
    int zero = 0;
    WholeCost whole_cost = {};     ///< returns the cost of a parameter that no shard may cut
    bool offloads_sums = false;    ///< gradients are added up in other memory than the device's
    bool bfloat16_sums = false;    ///< gradients are added up in bfloat16
    bool offloads_values = false;  ///< values are in other memory than the device's; zero is 0 or 3
    bool shards_frozen = false;    ///< a process has a part of the frozen values, as with ZeRO-3
    bool offloads_frozen = false;  ///< frozen values are in other memory than the device's
    /// Allocates what is in other memory than the device's (offload_allocator.h).
    std::shared_ptr<Allocator> host_allocator = {};

    /// Whether backward passes write to GradientSlots, so that the store must have no gradient block.
    bool has_slots(int processes) const {
        return (zero >= 2 && processes > 1) || offloads_sums || bfloat16_sums;
    }
    /// Whether passes read values from ValueSlots, so that the store must have no value block.
    bool has_value_slots(int processes) const { return (zero == 3 && processes > 1) || offloads_values; }
    /// Whether passes read frozen values from slots, so that their store must have no value block.
    bool has_frozen_slots(int processes) const { return (shards_frozen && processes > 1) || offloads_frozen; }
};

/// Returns the buckets of a DataParallel with these options. A bucket ends after 48 MiB of gradients, which
/// are two GPT-2 124M blocks. Slots of gradients or values hold a few buckets, so with them a bucket ends
/// after a 16th of all elements if that is less, and with its stage.
std::vector<ShardBucket> shard_buckets(const ParameterStore& store, int processes,
                                       const DataParallelOptions& options);

class DataParallel {
  public:
    /// `store` must be allocated, without a gradient block if options.has_slots(), and without a value block
    /// if options.has_value_slots(). `frozen`: the store of frozen parameters, allocated without a value
    /// block; read only if options.has_frozen_slots(). Stores and communicator must outlive this object.
    DataParallel(const Context& ctx, const ParameterStore& store, const Communicator& communicator,
                 const DataParallelOptions& options, const ParameterStore* frozen = nullptr);
    ~DataParallel();

    // ---- Gradients ----
    /// Call before a micro-step's forward pass. Returns hooks for its backward pass, which start to sum
    /// complete buckets before each attention: with slots in every micro-step, else in the last. The first
    /// contribution to each gradient then overwrites the last step's, or with slots the last micro-step's.
    /// Returns no hooks if there is only one process and no slots.
    ///
    /// Sums in bfloat16 are rounded to nearest in the first micro-step, and stochastically in the others. The
    /// random bits follow from the step's key; other sums do not need it.
    BackwardHooks start_micro_step(const Context& ctx, std::int64_t micro_step, std::int64_t micro_steps,
                                   const DropoutKey& step = {});
    /// Work enqueued on ctx's stream after this call sees gradients() summed, over all micro-steps.
    void finish_gradients(const Context& ctx);
    /// Replicated: all gradients in the store, or with slots their sums. Sharded: this process's shard,
    /// packed; with ZeRO-1 the store then keeps this process's own gradients.
    const Tensor& gradients() const { return gradients_; }
    /// Bytes of memory for gradients: gradients(), and what backward passes write to.
    std::size_t gradient_bytes() const;
    /// x = the sum of x over processes, in ctx's stream order; used for small values such as the loss.
    void sum(const Context& ctx, const Tensor& x) const;

    /// The ranges that this process updates, in packing order.
    const std::vector<FlatRange>& own_ranges() const { return own_ranges_; }

    // ---- Values (sharded, or in other memory than the device's) ----
    bool is_sharded() const { return options_.zero > 0; }
    std::int64_t own_elements() const;
    /// Called after every process has updated its shard: starts to gather all values, in the order in which
    /// they are used, and returns hooks that make forward passes wait for them. With value slots the hooks
    /// gather the values themselves. Every process then runs the same passes. Returns no hooks if the stores
    /// have all values, and the optimizer is not sharded.
    ForwardHooks overlap_gather_with_forward(const Context& ctx);
    /// Gathers all values, frozen ones too, before further work on ctx's stream. With value slots ctx
    /// allocates a block for them, which lasts until release_values() or the next
    /// overlap_gather_with_forward().
    void gather_values(const Context& ctx);
    void release_values();
    /// Bytes that gather_values() allocates.
    std::size_t bytes_to_gather_values() const;
    /// With value slots: [own_elements()] the values of own_ranges(), packed, which the optimizer updates;
    /// else undefined.
    const Tensor& own_values() const { return own_values_; }
    /// Bytes of the device's memory for values at rest and in passes, with those of frozen values that have
    /// slots.
    std::size_t value_bytes() const;
    /// Null unless frozen values have slots.
    FrozenValues* frozen() const { return frozen_.get(); }
    bool offloads_frozen() const { return options_.offloads_frozen; }
    /// Slots keep frozen values from pass to pass. A step in a graph reads what they held when it was
    /// captured, and other passes change that: hold_frozen() gathers it again, before further work on ctx's
    /// stream. Call forget_frozen() after a capture that failed, because its passes gathered nothing.
    using HeldSlots = std::vector<std::vector<std::optional<std::size_t>>>;
    HeldSlots held_frozen() const;
    void hold_frozen(const Context& ctx, const HeldSlots& held);
    void forget_frozen();

    // ---- Optimizer state (sharded) ----
    /// Reads or writes one bucket's numbers; `numbers` is their place in the flat state tensor.
    using BucketAccess = std::function<void(const FlatRange& numbers, const Tensor& bucket)>;
    /// Collective: collects a flat state tensor, which has `numbers_per_64` numbers for 64 elements of the
    /// flat blocks, bucket by bucket in the gradients' memory. write() writes this process's numbers, then
    /// read() reads those of all processes; numbers that no process wrote are undefined. Both enqueue their
    /// work on ctx's stream. `dtype` is not longer than the gradients'.
    void gather_state(const Context& ctx, DType dtype, std::int64_t numbers_per_64, const BucketAccess& write,
                      const BucketAccess& read) const;

  private:
    struct OwnPart;
    struct Bucket;
    void assign_shards(const Context& ctx);
    Context host_memory(const Context& ctx) const;
    DType sum_dtype() const;
    void make_slots(const Context& symmetric);
    BackwardHooks sum_hooks(const Context& ctx);
    void sum_bucket(const Context& exchange, const Bucket& bucket, const Tensor& local) const;
    void sum_complete_buckets(const Context& ctx);
    void start_gathering(const Context& ctx);
    StageHook wait_for_gathered(const Context& ctx);
    void gather_own_values(const Context& exchange, const Bucket& bucket, const Tensor& full) const;
    StageHook gather_stages(const Context& ctx) const;

    const ParameterStore& store_;
    const Communicator& communicator_;
    DataParallelOptions options_;
    std::unique_ptr<SideStream> exchange_;
    std::vector<Bucket> buckets_;
    std::vector<FlatRange> own_ranges_;
    Tensor gradients_;
    Tensor own_values_, gathered_values_;  // with value slots
    std::unique_ptr<GradientSlots> slots_;
    std::unique_ptr<ValueSlots> value_slots_;
    std::unique_ptr<FrozenValues> frozen_;
    bool adds_ = false;                    // sums are added to those of the micro-steps before
    DropoutKey rounding_;                  // of sums in bfloat16 that are added
    std::vector<const Bucket*> complete_;  // complete buckets whose sums have not started
    std::size_t next_bucket_ = 0;          // first bucket that the forward pass has not waited for
};

}  // namespace gradtile
