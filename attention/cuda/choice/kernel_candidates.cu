// Lists the ways to compute a flash call on this GPU. A plan is what the dispatch would do under a forced
// choice, from the same functions.
#include <algorithm>
#include <functional>

#include <gradtile/attention/cuda/f32/tiles.h>
#include <gradtile/attention/cuda/few_queries.h>
#include <gradtile/attention/cuda/hopper/candidates.h>
#include <gradtile/attention/cuda/hopper/hopper.h>
#include <gradtile/attention/cuda/hopper/schedule.h>
#include <gradtile/attention/internal/kernel_candidates.h>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

using Kernels = KernelPlan::Kernels;
using Sums = KernelPlan::Sums;

/// One pass of one call. Functions that give a plan read the forced choice.
struct Call {
    const Context& ctx;
    const ResolvedOptions& options;
    const Tensor &q, &k, &v;
    device::Sizes sizes = device::sizes_of(q, k, v);
    int widest = std::max(sizes.qk_dim, sizes.v_dim);
    int head_dim = q.dtype() == DType::f32 ? padded_head_dim(F32HeadDims{}, widest)
                                           : padded_head_dim(Bits16HeadDims{}, widest);
    std::int64_t batch_heads = q.size(0) * q.size(2);

    FewQueriesPlan few_queries() const { return few_queries_plan(ctx, options, q, k, head_dim); }
    bool is_16_bits() const { return is_16_bit(q.dtype()); }
    /// Whether candidates.h has kernels for this call if it uses Hopper's.
    bool has_other_tiles() const {
        return has_tile_candidates() && q.dtype() == DType::bf16 && !options.packed &&
               options.scores.scores_are_products;
    }
    HopperForwardTiles forward_tiles() const {
        const auto number = forced_kernel_choice().forward_tiles;
        if (number) return hopper_forward_candidates(head_dim)[static_cast<std::size_t>(*number)];
        const HopperRule rule =
            kernel_rule(hopper_rule(options.scores), head_dim, static_cast<bool>(options.packed));
        if (head_dim == hopper_short_head_dim && !options.packed && rule == HopperRule::products &&
            options.mask.keys <= hopper_short_keys)
            return hopper_short_forward_tiles;
        return hopper_forward_tiles(head_dim, may_drop(rule));
    }
};

KernelPlan forward_plan(const Call& call) {
    if (const FewQueriesPlan plan = call.few_queries())
        return {.kernels = why_not_hopper_few_queries(call.options, plan, call.head_dim,
                                                      {call.q, call.k, call.v}) == nullptr
                               ? Kernels::hopper_few_queries
                               : Kernels::few_queries,
                .rows = plan.rows,
                .splits = plan.splits};
    if (!call.is_16_bits() || why_not_hopper(call.options, {call.q, call.k, call.v}) != nullptr) return {};
    const HopperForwardTiles tiles = call.forward_tiles();
    KernelPlan plan{.kernels = Kernels::hopper,
                    .consumers = tiles.consumers,
                    .rows = tiles.rows(),
                    .keys = tiles.keys,
                    .stages = tiles.stages,
                    .q_stages = tiles.q_stages,
                    .in_turns = tiles.ordered};
    if (call.options.packed) return plan;  // the number of tasks is known on the GPU only
    const bool is_192_128 =
        call.head_dim == 192 && call.sizes.v_dim <= 128 && !forced_kernel_choice().forward_tiles;
    const HopperForwardSchedule schedule = hopper_forward_schedule(
        call.batch_heads, static_cast<int>(call.options.mask.queries), tiles.rows(),
        gradtile::cuda::processors_of(call.ctx),
        hopper_forward_head_bytes(call.options.mask.keys, call.head_dim, is_192_128 ? 128 : call.head_dim,
                                  call.sizes.group));
    plan.pairs = schedule.pairs;
    plan.set_heads = schedule.order.cached_heads;
    return plan;
}

KernelPlan backward_plan(const Call& call) {
    const ResolvedOptions& options = call.options;
    if (!call.is_16_bits() ||
        why_not_hopper_backward(options, call.sizes, call.batch_heads, {call.q, call.k, call.v}) != nullptr)
        return {};
    const std::int64_t key_heads = call.batch_heads / call.sizes.group,
                       padded_rows = (options.mask.queries + backward_row_padding - 1) /
                                     backward_row_padding * backward_row_padding;
    const auto set_heads = [&](int block_keys, std::int64_t row_bytes) {
        const std::int64_t key_blocks = (options.mask.keys + block_keys - 1) / block_keys;
        return hopper_task_order(key_heads, static_cast<int>(key_blocks),
                                 call.sizes.group * padded_rows * row_bytes)
            .cached_heads;
    };
    KernelPlan plan{.kernels = Kernels::hopper, .sums = Sums::by_threads};
    if (call.head_dim > hopper_backward_keys_max_head_dim) {
        const int v_dim = call.head_dim == 192 && call.sizes.v_dim <= 128 ? 128 : call.head_dim;
        plan.consumers = HopperColumnsTiles::consumers;
        plan.rows = HopperColumnsTiles::rows;
        plan.keys = HopperColumnsTiles::keys;
        if (!options.packed)
            plan.set_heads = set_heads(*plan.keys, hopper_backward_row_bytes(call.head_dim, v_dim));
        return plan;
    }
    const int head_dim = padded_hopper_head_dim(call.head_dim);
    const HopperBackwardTiles tiles = chosen_hopper_backward_tiles(head_dim, options.scores);
    plan.consumers = tiles.consumers;
    plan.rows = tiles.rows;
    plan.keys = tiles.keys;
    plan.stages = tiles.d_q_stages;
    plan.sums = Sums::in_bulk;
    if (options.packed) return plan;
    plan.set_heads = set_heads(tiles.keys, hopper_backward_row_bytes(head_dim, head_dim));
    if (const DqRing ring = d_q_ring(options, call.sizes, call.batch_heads, padded_rows); ring.slots > 0) {
        plan.sums = Sums::in_ring;
        plan.slots = ring.slots;
    }
    return plan;
}

/// Collects the candidates whose plans differ from all earlier plans.
class Candidates {
  public:
    explicit Candidates(std::function<KernelPlan()> plan) : plan_(std::move(plan)) { add({}); }
    void add(const KernelChoice& choice) {
        const ForcedKernelChoice forced(choice);
        const KernelPlan plan = plan_();
        const auto has_this_plan = [&](const KernelCandidate& other) { return other.plan == plan; };
        if (std::ranges::none_of(list_, has_this_plan)) list_.push_back({choice, plan});
    }
    /// Half as many heads per set, twice as many, one, and all.
    void add_sets(std::int64_t heads) {
        const auto policy = policy_plan().set_heads;
        if (!policy) return;
        for (const int set_heads : {std::max(1, *policy / 2), 2 * *policy, 1, static_cast<int>(heads)})
            add({.set_heads = set_heads});
    }
    const KernelPlan& policy_plan() const { return list_.front().plan; }
    std::vector<KernelCandidate> list() && { return std::move(list_); }

  private:
    std::function<KernelPlan()> plan_;
    std::vector<KernelCandidate> list_;
};

}  // namespace

std::vector<KernelCandidate> forward_candidates(const Context& ctx, const ResolvedOptions& options,
                                                const Tensor& q, const Tensor& k, const Tensor& v) {
    gradtile::cuda::use_device(ctx.device());
    const Call call{ctx, options, q, k, v};
    Candidates candidates([&] { return forward_plan(call); });
    if (const auto splits = candidates.policy_plan().splits) {
        for (const int other : {1, *splits / 2, *splits - 1, *splits + 1, 2 * *splits, 4 * *splits})
            candidates.add({.splits = std::max(1, other)});
        for (const bool hopper : {true, false}) candidates.add({.hopper = hopper});
        candidates.add({.few_queries = false});
        candidates.add({.hopper = false, .few_queries = false});
        return std::move(candidates).list();
    }
    for (const bool pairs : {true, false}) candidates.add({.pairs = pairs});
    candidates.add_sets(call.batch_heads);
    if (candidates.policy_plan().kernels == Kernels::hopper && call.has_other_tiles())
        for (int i = 0; i < static_cast<int>(hopper_forward_candidates(call.head_dim).size()); ++i)
            candidates.add({.forward_tiles = i});
    candidates.add({.hopper = false});
    return std::move(candidates).list();
}

std::vector<KernelCandidate> backward_candidates(const Context& ctx, const ResolvedOptions& options,
                                                 const Tensor& q, const Tensor& k, const Tensor& v) {
    gradtile::cuda::use_device(ctx.device());
    const Call call{ctx, options, q, k, v};
    Candidates candidates([&] { return backward_plan(call); });
    candidates.add({.hopper = true});
    for (const bool ring : {true, false}) candidates.add({.ring = ring});
    candidates.add_sets(call.batch_heads / call.sizes.group);
    if (const auto slots = candidates.policy_plan().slots) {
        const int set_heads = *candidates.policy_plan().set_heads, more = *slots - set_heads;
        for (const int other : {0, more / 2, 2 * more, static_cast<int>(call.batch_heads)})
            candidates.add({.more_slots = other});
    }
    if (candidates.policy_plan().kernels == Kernels::hopper && call.has_other_tiles() &&
        !options.deterministic && call.head_dim <= hopper_backward_keys_max_head_dim) {
        const auto tiles = hopper_backward_candidates(padded_hopper_head_dim(call.head_dim));
        for (int i = 0; i < static_cast<int>(tiles.size()); ++i) candidates.add({.backward_tiles = i});
    }
    candidates.add({.hopper = false});
    return std::move(candidates).list();
}

}  // namespace gradtile::attention::cuda
