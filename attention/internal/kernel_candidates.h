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
        by_threads,  ///< for all heads; each thread adds its own dQ part
        in_bulk      ///< for all heads; one thread adds in bulk
    };
    Kernels kernels = Kernels::sm_80;
    std::optional<int> consumers = {};        ///< consumer warpgroups per thread block
    std::optional<int> rows = {}, keys = {};  ///< tile size per thread block
    /// Shared-memory stages for K and V (in the backward pass: for dQ), and for Q.
    std::optional<int> stages = {}, q_stages = {};
    std::optional<bool> in_turns = {};              ///< whether consumers start their products in turns
    std::optional<bool> pairs = {};                 ///< whether a task is a pair of row blocks
    std::optional<int> set_heads = {}, slots = {};  ///< heads per TaskOrder set; ring slots
    std::optional<Sums> sums = {};                  ///< how dQ is summed
    std::optional<int> splits = {};                 ///< key splits

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

/// The candidates for one pass; the first one is the policy's choice, and all plans differ. The arguments are
/// the same as for attention::forward and attention::backward with Algorithm::flash on a GPU. Throws Error in
/// a build without the CUDA toolkit.
std::vector<KernelCandidate> forward_candidates(const Context& ctx, const Tensor& q, const Tensor& k,
                                                const Tensor& v, const Options& options);
std::vector<KernelCandidate> backward_candidates(const Context& ctx, const Options& options,
                                                 const Saved& saved);
/// Says how to get a build with tile candidates; nullptr if this build has them.
const char* why_no_tile_candidates();

namespace cuda {
std::vector<KernelCandidate> forward_candidates(const Context& ctx, const ResolvedOptions& options,
                                                const Tensor& q, const Tensor& k, const Tensor& v);
std::vector<KernelCandidate> backward_candidates(const Context& ctx, const ResolvedOptions& options,
                                                 const Tensor& q, const Tensor& k, const Tensor& v);
bool has_tile_candidates();
}  // namespace cuda

}  // namespace gradtile::attention
