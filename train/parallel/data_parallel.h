#pragma once
/// DataParallel: the exchanges in a training step between processes that hold the same model. Gradients are
/// summed over processes bucket by bucket, overlapping the backward pass's attention kernels. Each process
/// divides its loss by all processes' target count, so the sum is the average.
///
/// Replicated: every process receives all sums and updates all parameters. Sharded (ZeRO-1: Rajbhandari et
/// al. 2020, "ZeRO: memory optimizations toward training trillion parameter models"): a process receives its
/// own shard's sums and updates that shard; the values are gathered when the next step starts, overlapping
/// its forward pass. Some parameters must be updated whole by one process. Their gradients are summed in
/// every process, and the owners broadcast the new values. This method allows shards with unequal lengths,
/// and costs three transfers per bucket instead of two.
///
/// On a GPU exchanges run on a separate stream and can be captured with the step; on the CPU a call blocks
/// until the exchange is complete.
#include <memory>
#include <span>
#include <vector>

#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/pass_hooks.h>
#include <gradtile/train/parallel/communicator.h>
#include <gradtile/train/parallel/shard_layout.h>

namespace gradtile {

class SideStream;

/// packed = the concatenated slices `ranges` of whole [flat].
void pack(const Context& ctx, const Tensor& full, std::span<const FlatRange> ranges, const Tensor& packed);

struct DataParallelOptions {
    bool sharded = false;
    std::int64_t bucket_elements = 12 << 20;  ///< 48 MiB of gradients: two GPT-2 124M blocks
    WholeCost whole_cost = {};                ///< names the parameters that shards must not cut
};

class DataParallel {
  public:
    /// `store` must be allocated. With options.sharded, its flat blocks' length must be a multiple of
    /// flat_multiple(communicator.size()). Store and communicator must outlive this object.
    DataParallel(const Context& ctx, const ParameterStore& store, const Communicator& communicator,
                 const DataParallelOptions& options);
    ~DataParallel();

    // ---- Gradients ----
    /// Hooks for a step's last backward pass: they start to sum complete buckets before each attention.
    /// Returns no hooks if there is only one process.
    BackwardHooks overlap_sums_with_backward(const Context& ctx);
    /// Work enqueued on ctx's stream after this call sees gradients() summed.
    void finish_gradients(const Context& ctx);
    /// Replicated: all gradients in the store. Sharded: this process's shard, packed; the store then keeps
    /// this process's own gradients.
    const Tensor& gradients() const { return gradients_; }
    /// x = the sum of x over processes, in ctx's stream order; used for small values such as the loss.
    void sum(const Context& ctx, const Tensor& x) const;

    // ---- Values (sharded) ----
    bool is_sharded() const { return options_.sharded; }
    /// The ranges that this process updates, in packing order.
    const std::vector<FlatRange>& own_ranges() const { return own_ranges_; }
    std::int64_t own_elements() const;
    /// Called after every process has updated its shard: starts to gather all values, in the order in which
    /// they are used, and returns hooks that make the forward pass wait for them. Returns no hooks if the
    /// optimizer is not sharded.
    ForwardHooks overlap_gather_with_forward(const Context& ctx);
    /// Gathers all values before further work on ctx's stream.
    void gather_values(const Context& ctx);

    // ---- Optimizer state (sharded) ----
    /// Collective: sends every process's ranges of `full` [flat] to all others. `full` has numbers_per_64
    /// numbers for 64 elements of the flat blocks.
    void gather(const Context& ctx, const Tensor& full, std::int64_t numbers_per_64 = 64) const;
    /// Collective: writes every process's packed state to its `ranges` of whole [flat]. Elements outside all
    /// ranges are undefined.
    void unpack(const Context& ctx, const Tensor& packed, std::span<const FlatRange> ranges,
                const Tensor& full, std::int64_t numbers_per_64 = 64) const;

  private:
    struct Bucket;
    void assign_shards(const Context& ctx);
    void sum_bucket(const Context& ctx, const Bucket& bucket);
    void sum_complete_buckets(const Context& ctx);
    void start_gathering(const Context& ctx);
    void gather_bucket(const Context& exchange, const Bucket& bucket, const Tensor& full,
                       std::int64_t numbers_per_64) const;

    const ParameterStore& store_;
    const Communicator& communicator_;
    DataParallelOptions options_;
    std::unique_ptr<SideStream> exchange_;
    std::vector<Bucket> buckets_;
    std::vector<FlatRange> own_ranges_;
    Tensor gradients_;
    std::vector<const Bucket*> complete_;  // complete buckets whose sums have not started
    std::size_t next_bucket_ = 0;          // first bucket that the forward pass has not waited for
};

}  // namespace gradtile
