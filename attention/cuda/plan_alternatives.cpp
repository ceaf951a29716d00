// plans(): what `bench attention --tune` compares with the chosen plan.
#include <algorithm>

#include <gradtile/attention/cuda/plan.h>
#include <gradtile/attention/cuda/sm90/candidates.h>
#include <gradtile/attention/cuda/sm90/tiles.h>

namespace gradtile::attention::cuda {
namespace {

/// Collects plans that run differently from all earlier ones.
class Plans {
  public:
    Plans(const FlashProblem& problem, const ResolvedOptions& options, const GpuLimits& gpu)
        : problem_(problem), options_(options), gpu_(gpu) {
        add({});
    }
    void add(const KernelChoice& choice) {
        options_.kernels = choice;
        FlashPlan next = plan(problem_, options_, gpu_);
        if (std::ranges::none_of(list_, [&](const FlashPlan& other) { return other.runs_like(next); }))
            list_.push_back(std::move(next));
    }
    /// Half as many heads per set, twice as many, one, and all.
    void add_sets(std::int64_t heads) {
        const int policy = list_.front().schedule.set_heads();
        if (policy == 0) return;
        for (const int set_heads : {std::max(1, policy / 2), 2 * policy, 1, static_cast<int>(heads)})
            add({.set_heads = set_heads});
    }
    void add_forward() {
        const FlashPlan policy = list_.front();
        if (takes_few_queries(policy.family)) {
            const int splits = policy.schedule.few_queries.splits;
            for (const int other : {1, splits / 2, splits - 1, splits + 1, 2 * splits, 4 * splits})
                add({.splits = std::max(1, other)});
            for (const bool hopper : {true, false}) add({.hopper = hopper});
            add({.few_queries = false});
            return add({.hopper = false, .few_queries = false});
        }
        for (const bool pairs : {true, false}) add({.pairs = pairs});
        add_sets(problem_.batch * problem_.heads);
        if (policy.family == Family::sm90 && has_candidates())
            for (int i = 0; i < static_cast<int>(hopper_forward_candidates(policy.tiles.head_dim).size());
                 ++i)
                add({.forward_tiles = i});
        add({.hopper = false});
    }
    void add_backward() {
        const FlashPlan policy = list_.front();
        add({.hopper = true});
        for (const bool ring : {true, false}) add({.ring = ring});
        add_sets(problem_.batch * problem_.key_heads);
        if (const int slots = policy.schedule.ring_slots; slots > 0) {
            const int more = slots - policy.schedule.set_heads();
            for (const int other : {0, more / 2, 2 * more, static_cast<int>(problem_.batch * problem_.heads)})
                add({.more_slots = other});
        }
        if (policy.family == Family::sm90 && has_candidates() &&
            policy.tiles.head_dim <= hopper_backward_keys_max_head_dim) {
            const auto tiles = hopper_backward_candidates(padded_hopper_head_dim(policy.tiles.head_dim));
            for (int i = 0; i < static_cast<int>(tiles.size()); ++i) add({.backward_tiles = i});
        }
        add({.hopper = false});
    }
    std::vector<FlashPlan> list() && { return std::move(list_); }

  private:
    bool has_candidates() const { return gpu_.has_candidates && has_candidate_kernels(problem_, options_); }
    const FlashProblem& problem_;
    ResolvedOptions options_;
    const GpuLimits& gpu_;
    std::vector<FlashPlan> list_;
};

}  // namespace

std::vector<FlashPlan> plans(const FlashProblem& problem, const ResolvedOptions& options,
                             const GpuLimits& gpu) {
    Plans plans(problem, options, gpu);
    problem.pass == Pass::forward ? plans.add_forward() : plans.add_backward();
    return std::move(plans).list();
}

}  // namespace gradtile::attention::cuda
