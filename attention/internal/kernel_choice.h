#pragma once
/// INTERNAL. GPU kernel and schedule choices that replace the policy's, for `gradtile bench attention --tune`
/// and for tests. The policy is in attention/cuda/hopper/tiles.h and attention/internal/key_splits.h.
#include <optional>

namespace gradtile::attention {

/// An empty member leaves the choice to the policy. A member that does not apply to a call changes nothing,
/// but tiles that a call has no kernel for are an Error.
struct KernelChoice {
    /// false: no kernels from attention/cuda/hopper. true: these kernels also where others are faster.
    std::optional<bool> hopper = {};
    std::optional<bool> few_queries = {};  ///< false: few queries use the kernels for many queries, too
    std::optional<int> splits = {};        ///< key splits for few queries, at most the policy's limit
    std::optional<bool> pairs = {};        ///< whether a forward task is a pair of row blocks
    std::optional<int> set_heads = {};     ///< heads per TaskOrder set
    std::optional<bool> ring = {};         ///< whether dQ is summed for the heads in flight only
    /// Extra slots in the dQ accumulator ring, beyond one head set.
    std::optional<int> more_slots = {};
    // Indices into the lists in attention/cuda/hopper/candidates.h.
    std::optional<int> forward_tiles = {}, backward_tiles = {};

    bool operator==(const KernelChoice&) const = default;
};

/// The choice for the calling thread's calls.
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
