#pragma once
/// DataParallel: what processes that train copies of one model exchange in a step. Gradients are summed over
/// processes bucket by bucket while the backward pass still runs, beside its attention kernels; dividing each
/// process's loss by what all processes together have makes the sum the average.
///
/// Replicated, every process then holds all sums and updates everything. Sharded (ZeRO-1: Rajbhandari et al.
/// 2020, "ZeRO: memory optimizations toward training trillion parameter models") a process gets the sums of
/// its own part only, updates that, and the values are gathered at the start of the next step, beside its
/// forward pass. Parameters that one process must update whole are summed in every process and broadcast by
/// their owners instead: parts of any lengths, for three transfers of a bucket in place of two.
///
/// On a GPU exchanges run on a stream of their own and can be captured with the step; on the CPU a call
/// returns when it is done.
#include <memory>
#include <span>
#include <vector>

#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/pass_hooks.h>
#include <gradtile/train/parallel/communicator.h>
#include <gradtile/train/parallel/shard_layout.h>

namespace gradtile {

class SideStream;

/// packed = the stretches `ranges` of whole [flat], one behind the other.
void pack(const Context& ctx, const Tensor& whole, std::span<const FlatRange> ranges, const Tensor& packed);

struct DataParallelOptions {
    bool sharded = false;
    std::int64_t bucket_elements = 12 << 20;  ///< 48 MiB of gradients: two blocks of GPT-2 124M
    WholeCost whole_cost = {};                ///< what shards must not cut
};

class DataParallel {
  public:
    /// For an allocated store, whose blocks are, when sharded, a multiple of flat_multiple(processes). Store
    /// and communicator must outlive it.
    DataParallel(const Context& ctx, const ParameterStore& store, const Communicator& communicator,
                 const DataParallelOptions& options);
    ~DataParallel();

    // ---- Gradients ----
    /// For the backward pass after which a step's gradients are complete: starts the sums of complete buckets
    /// before each attention. Empty where there is nothing to sum.
    BackwardHooks sum_beside_backward(const Context& ctx);
    /// What runs on ctx's stream from now on finds gradients() summed.
    void finish_gradients(const Context& ctx);
    /// All gradients of the store, or, sharded, this process's part, packed; the store's are then its own.
    const Tensor& gradients() const { return gradients_; }
    /// x = its sum over processes, for the few numbers beside gradients. In the order of ctx's stream.
    void sum(const Context& ctx, const Tensor& x) const;

    // ---- Values, when sharded ----
    bool is_sharded() const { return options_.sharded; }
    /// What this process updates, in the order in which its part is packed.
    const std::vector<FlatRange>& own_ranges() const { return own_ranges_; }
    std::int64_t own_elements() const;
    /// For the forward passes after everybody updated its part: starts to bring all parts together, in the
    /// order of their use. Empty where there is nothing to gather.
    ForwardHooks gather_beside_forward(const Context& ctx);
    /// At once, all values.
    void gather_values(const Context& ctx);

    // ---- Optimizer state, when sharded; collective ----
    /// whole [flat] = all processes' `packed`, each the stretches `ranges` of its own part. Elements that no
    /// process brings are left undefined.
    void unpack(const Context& ctx, const Tensor& packed, std::span<const FlatRange> ranges,
                const Tensor& whole) const;

  private:
    struct Bucket;
    void share_out(const Context& ctx);
    void sum_bucket(const Context& ctx, const Bucket& bucket);
    void sum_complete_buckets(const Context& ctx);
    void start_gathering(const Context& ctx);
    void gather_bucket(const Context& exchange, const Bucket& bucket, const Tensor& whole) const;

    const ParameterStore& store_;
    const Communicator& communicator_;
    DataParallelOptions options_;
    std::unique_ptr<SideStream> exchange_;
    std::vector<Bucket> buckets_;
    std::vector<FlatRange> own_ranges_;
    Tensor gradients_;
    std::vector<const Bucket*> complete_;  // whose sums have not started
    std::size_t waited_for_ = 0;           // buckets whose values the forward pass may read
};

}  // namespace gradtile
