#pragma once
/// INTERNAL. Choices of GPU kernels and schedules in place of the policy's, for `gradtile bench attention
/// --tune` and for tests. The policy is in attention/cuda/hopper/tiles.h and attention/internal/key_splits.h.
#include <optional>

namespace gradtile::attention {

/// An empty member leaves the choice to the policy. A member that does not apply to a call changes nothing,
/// but tiles that a call has no kernel for are an Error.
struct KernelChoice {
    /// false: no kernels of attention/cuda/hopper. true: these kernels also where others are faster.
    std::optional<bool> hopper = {};
    std::optional<bool> few_queries = {};  ///< false: few queries use the kernels for many queries, too
    std::optional<int> splits = {};        ///< of the keys of few queries, at most the policy's limit
    std::optional<bool> pairs = {};        ///< whether a task of the forward pass is a pair of blocks of rows
    std::optional<int> set_heads = {};     ///< heads of a set of TaskOrder
    std::optional<bool> ring = {};         ///< whether dQ is summed for the heads in flight only
    /// Slots of the ring of the sums of dQ, in addition to those of a set.
    std::optional<int> more_slots = {};
    // Numbers in the lists of attention/cuda/hopper/candidates.h.
    std::optional<int> forward_tiles = {}, backward_tiles = {};

    bool operator==(const KernelChoice&) const = default;
};

/// The choice that holds for calls of the calling thread.
const KernelChoice& forced_kernel_choice();

/// Replaces the choice for the calling thread as long as this object exists, and then restores the previous
/// one. Threads do not influence each other, because a call is enqueued by the thread that makes it.
class ForcedKernelChoice {
  public:
    explicit ForcedKernelChoice(const KernelChoice& choice);
    ~ForcedKernelChoice();
    ForcedKernelChoice(const ForcedKernelChoice&) = delete;
    ForcedKernelChoice& operator=(const ForcedKernelChoice&) = delete;

  private:
    KernelChoice previous_;
};

}  // namespace gradtile::attention
