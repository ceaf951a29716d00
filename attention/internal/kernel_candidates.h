#pragma once
/// INTERNAL. Every way in which this build can compute a call on a GPU, for `gradtile bench attention --tune`
/// and for tests.
#include <iosfwd>
#include <optional>
#include <vector>

#include <gradtile/attention/attention.h>
#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/internal/kernel_choice.h>

namespace gradtile::attention {

/// What computes a pass. Members without a value do not apply.
struct KernelPlan {
    enum class Kernels { hopper, sm_80, hopper_few_queries, few_queries };
    enum class Sums {
        in_ring,     ///< dQ is summed for the heads in flight only
        by_threads,  ///< for all heads; the threads that computed a part of dQ add it
        in_bulk      ///< for all heads; one thread adds in bulk
    };
    Kernels kernels = Kernels::sm_80;
    std::optional<int> consumers = {};        ///< warpgroups of a thread block that compute
    std::optional<int> rows = {}, keys = {};  ///< of a thread block's tile
    /// Blocks in shared memory: of K and V, in the backward pass of dQ; and of Q.
    std::optional<int> stages = {}, q_stages = {};
    std::optional<bool> in_turns = {};              ///< whether consumers start their products in turns
    std::optional<bool> pairs = {};                 ///< whether a task is a pair of blocks of rows
    std::optional<int> set_heads = {}, slots = {};  ///< heads of a set of TaskOrder; slots of the ring
    std::optional<Sums> sums = {};                  ///< of dQ
    std::optional<int> splits = {};                 ///< parts of the keys

    bool operator==(const KernelPlan&) const = default;
};
std::ostream& operator<<(std::ostream& out, KernelPlan::Kernels kernels);
std::ostream& operator<<(std::ostream& out, KernelPlan::Sums sums);
/// For messages: "hopper 3 x 64 rows, 128 keys, ...".
std::ostream& operator<<(std::ostream& out, const KernelPlan& plan);

struct KernelCandidate {
    KernelChoice choice;  ///< the policy's, if it has no members
    KernelPlan plan;
};

/// The candidates of a pass; the first one is the policy's choice, and all plans differ. The arguments are
/// those of attention::forward and attention::backward with Algorithm::flash on a GPU. Throws Error in a
/// build without the CUDA toolkit.
std::vector<KernelCandidate> forward_candidates(const Context& ctx, const Tensor& q, const Tensor& k,
                                                const Tensor& v, const Options& options);
std::vector<KernelCandidate> backward_candidates(const Context& ctx, const Options& options,
                                                 const Saved& saved);
/// Says how to get a build with candidates of tiles, or nullptr if this is one.
const char* why_no_tile_candidates();

namespace cuda {
std::vector<KernelCandidate> forward_candidates(const Context& ctx, const ResolvedOptions& options,
                                                const Tensor& q, const Tensor& k, const Tensor& v);
std::vector<KernelCandidate> backward_candidates(const Context& ctx, const ResolvedOptions& options,
                                                 const Tensor& q, const Tensor& k, const Tensor& v);
bool has_tile_candidates();
}  // namespace cuda

}  // namespace gradtile::attention
