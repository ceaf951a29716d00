// Plans for bfloat16 and float16: kernels for all GPUs (sm80) or for Hopper (sm90).
#include <algorithm>
#include <span>

#include <gradtile/attention/cuda/common/bias_gradient.h>
#include <gradtile/attention/cuda/plan_call.h>
#include <gradtile/attention/cuda/sm80/tiles.h>
#include <gradtile/attention/cuda/sm90/candidates.h>
#include <gradtile/attention/cuda/sm90/rules.h>
#include <gradtile/attention/cuda/sm90/schedule.h>
#include <gradtile/core/internal/unknown_enumerator.h>

namespace gradtile::attention::cuda {
namespace {

// ---- Biases ----

constexpr std::int64_t vector_bytes = 16;

bool has_rows(const ScoreOptions::Bias& bias) {
    return bias.data != nullptr && bias.strides[2] != 0;
}
bool has_vector_address(const ScoreOptions::Bias& bias) {
    return bias.strides[3] == 1 && reinterpret_cast<std::uintptr_t>(bias.data) % vector_bytes == 0;
}

/// Whether a bias can be copied 16 bytes at a time: neighbouring keys are adjacent in memory, and every row
/// begins at a multiple of 16 bytes.
bool has_tiles(const ScoreOptions::Bias& bias) {
    const std::int64_t elements = vector_bytes / static_cast<std::int64_t>(size_of(bias.dtype));
    return has_vector_address(bias) &&
           std::ranges::all_of(std::span(bias.strides).first(3),
                               [&](auto stride) { return stride % elements == 0; });
}
/// Whether TMA can address a bias.
bool has_map(const ScoreOptions::Bias& bias) {
    return has_vector_address(bias) &&
           std::ranges::all_of(std::span(bias.strides).first(3), [&](auto stride) {
               const std::int64_t bytes = stride * static_cast<std::int64_t>(size_of(bias.dtype));
               return bytes >= 0 && bytes % vector_bytes == 0 && bytes < std::int64_t{1} << 39;
           });
}

bool second_bias_comes_first(const ScoreOptions& scores) {
    const auto& [first, second] = scores.biases;
    return first.data == nullptr || (!has_rows(first) && second.strides[2] != 0);
}

/// Returns why the Hopper kernels cannot read these biases; nullptr if they can. `dtype` is q's.
const char* why_no_hopper_biases(const ScoreOptions& scores, DType dtype) {
    int matrices = 0;
    for (const ScoreOptions::Bias& bias : scores.biases) {
        if (!has_rows(bias)) continue;
        if (++matrices > 1) return "two biases depend on the query";
        if (bias.dtype != dtype && bias.dtype != DType::f32) return "a bias has another dtype";
        if (!has_map(bias)) return "TMA cannot read the strides of a bias";
    }
    return nullptr;
}
/// The index of the [queries, keys] matrix among the call's biases, or -1.
int bias_matrix_index(const ScoreOptions& scores) {
    const auto matrix = std::ranges::find_if(scores.biases, has_rows);
    return matrix == scores.biases.end() ? -1 : static_cast<int>(matrix - scores.biases.begin());
}

// ---- A pass ----

/// Whether a kernel tile with `columns` columns has panels outside a tensor with `head_dim` columns. In the
/// map for packed sequences, such loads fault: the map begins before the tensor, perhaps where no memory is.
bool has_panel_outside(std::int64_t head_dim, int columns) {
    // The narrowest panels that a kernel has: sm90/backward_columns.cuh.
    const int panel_columns = columns % 128 == 0 || columns == 64 ? 64 : 32;
    return head_dim <= columns - panel_columns;
}

const char* hopper_rule_text(HopperRule rule) {
    switch (rule) {
        case HopperRule::products:
            return "";
        case HopperRule::distance_terms:
            return ", with terms of the distance";
        case HopperRule::dropout:
            return ", with dropout";
        case HopperRule::formula:
            return ", with a formula of the scores";
        case HopperRule::row_ranges:
            return ", with row ranges";
        case HopperRule::biases:
            return ", with biases";
    }
    refuse_unknown("attention: unknown rule of Hopper's kernels");
}

/// A pass in 16 bits.
struct Call16 : Call {
    int head_dim = padded_head_dim(Bits16HeadDims{}, problem.head_dim());
    /// V's columns in the Hopper kernels.
    int v_columns = head_dim == 192 && problem.v_dim <= 128 ? 128 : head_dim;
    std::int64_t padded_rows = is_packed() ? padded_packed_rows(options.packed, problem.queries)
                                           : rounded_up(problem.queries, backward_row_padding);

    const char* why_no_biases() const {
        // Measured on an H100, 256 sequences x 8 heads x 512 tokens at head dim 32, a mask bias and a pair
        // bias: eight Hopper kernels took 0.59 to 0.75 ms, the kernel for all GPUs 0.58 to 0.62. In the
        // backward pass, with the pair bias gradient, the kernel for all GPUs took 2.35 to 2.77 ms, the
        // Hopper kernels 1.31 to 1.56.
        if (is_packed()) return "the call has biases and packed sequences";
        if (is_forward) return "with biases the kernel for all GPUs is as fast";
        if (scores.has_formula() || scores.drops()) return "the scores have biases and other rules";
        if (problem.head_dim() > hopper_biases_max_head_dim)
            return "with biases, the head dim is more than 64";
        return why_no_hopper_biases(scores, problem.dtype);
    }
    /// The Hopper kernels support every rule but biases, but not every scale and softcap.
    const char* why_no_rule() const {
        if (scores.scores_are_products) return nullptr;
        if (scores.alibi_batch_stride != 0) return "the slopes differ from batch to batch";
        const auto is_far_from_1 = [](double x) { return x < 0x1p-60 || x > 0x1p60; };
        // Kernels divide scores by the scale.
        if (scores.has_formula() && is_far_from_1(options.scale)) return "the scale is far from 1";
        if (scores.softcap != 0 && scores.softcap < 0x1p-60) return "the softcap is far from 1";
        if (scores.softcap > hopper_max_softcap) return "the softcap is large";
        return nullptr;
    }
    /// The Hopper kernels for row ranges. `columns` is their head dim.
    const char* why_no_row_ranges() const {
        if (!scores.scores_are_products) return "the call has row ranges and score rules";
        if (is_packed()) return "the call has row ranges and packed sequences";
        if (!is_forward && options.deterministic) return "the call has row ranges and a fixed order of sums";
        const int columns = is_forward ? head_dim : padded_hopper_head_dim(head_dim);
        return has_row_ranges_kernels(columns) ? nullptr : "row ranges have no kernels for the head dim";
    }
    /// Returns why the pass must not use the Hopper kernels; nullptr if it may. `no_maps` is the reason of
    /// the tensors that they copy by TMA.
    const char* why_no_sm90(const char* no_maps) const {
        if (gpu.why_no_sm90 != nullptr) return gpu.why_no_sm90;
        if (!choice.hopper.value_or(true)) return "other kernels are forced";
        if (!(options.scale > 0)) return "the scale is not positive";
        if (has_row_ranges())
            if (const char* const why_not = why_no_row_ranges()) return why_not;
        if (const char* const why_not = scores.has_biases() ? why_no_biases() : why_no_rule()) return why_not;
        if (is_packed() &&
            (has_panel_outside(problem.qk_dim, head_dim) || has_panel_outside(problem.v_dim, v_columns)))
            return "the head dims of packed sequences leave whole panels of a tile empty";
        if (is_empty()) return "there are no rows or keys";
        return no_maps;
    }
    const char* why_no_sm90_few_queries(const FewQueriesPlan& plan) const {
        if (plan.rows < hopper_few_queries_min_rows && !choice.hopper.value_or(false))
            return "there are at most 32 rows";
        if (head_dim != hopper_few_queries_head_dim) return "the head dim is not 97 to 128";
        if (!scores.scores_are_products) return "the scores have rules";
        return why_no_sm90(problem.why_no_input_maps);
    }
    const char* why_no_sm90_backward() const {
        if (!choice.hopper.value_or(false) && has_whole_heads())
            return "many short heads have a kernel that keeps dQ in shared memory";
        if (head_dim > hopper_backward_keys_max_head_dim && !scores.scores_are_products)
            return "the head dim is more than 128 and the scores have rules";
        return why_no_sm90(problem.why_no_maps);
    }
    /// Whether the kernels for all GPUs compute a whole head in one thread block.
    bool has_whole_heads() const {
        return !is_packed() && is_plain() && head_dim == 64 && problem.group() == 1 &&
               batch_heads >= enough_whole_heads && !is_empty() &&
               std::max(mask.queries, mask.keys) <=
                   Bits16BackwardChoice<64>::whole_head_rows(gpu.shared_bytes);
    }

    /// Sets the rule of the kernels for all GPUs, and the index of the bias that they read in tiles.
    void set_rule(FlashPlan& plan) const {
        if (scores.scores_are_products || is_packed() || scores.has_formula() || has_row_ranges()) return;
        const auto& [first, second] = with_pair_bias_first(scores).biases;
        const bool is_pair_bias = !scores.drops() && problem.keys % 8 == 0 && has_rows(first) &&
                                  first.dtype == problem.dtype && has_tiles(first) &&
                                  (second.data == nullptr || (!has_rows(second) && has_tiles(second)));
        if (scores.drops() && !scores.has_biases() && has_kernels(RuleKind::dropout, head_dim)) {
            plan.rule = RuleKind::dropout;
            plan.rules = ", with dropout";
        } else if (is_pair_bias && has_kernels(RuleKind::pair_bias, head_dim)) {
            plan.rule = RuleKind::pair_bias;
            plan.rules = ", with a bias in tiles";
            plan.schedule.pair_bias = second_bias_comes_first(scores) ? 1 : 0;
        }
    }
    template <class Choice>
    void set_forward_tiles(Tiles& tiles) const {
        const Bits16ForwardTiles chosen = tiles_for<Choice>(gpu.shared_bytes);
        tiles.rows = chosen.rows();
        tiles.keys = chosen.keys;
        tiles.stages = chosen.stages;
    }
    template <class Choice>
    void set_backward_tiles(Tiles& tiles) const {
        const Bits16BackwardTiles chosen = tiles_for<Choice>(gpu.shared_bytes);
        tiles.rows = chosen.rows;
        tiles.keys = chosen.keys();
    }
    void set_sm80_tiles(FlashPlan& plan) const {
        visit_head_dim(Bits16HeadDims{}, head_dim, [&]<int dim>(HeadDim<dim>) {
            switch (plan.rule) {
                case RuleKind::none:
                    return is_forward ? set_forward_tiles<Bits16ForwardChoice<dim>>(plan.tiles)
                                      : set_backward_tiles<Bits16BackwardChoice<dim>>(plan.tiles);
                case RuleKind::dropout:
                    return is_forward ? set_forward_tiles<Bits16DropoutForwardChoice<dim>>(plan.tiles)
                                      : set_backward_tiles<Bits16DropoutBackwardChoice<dim>>(plan.tiles);
                case RuleKind::pair_bias:
                    return is_forward ? set_forward_tiles<Bits16PairBiasForwardChoice<dim>>(plan.tiles)
                                      : set_backward_tiles<Bits16PairBiasBackwardChoice<dim>>(plan.tiles);
                case RuleKind::any:
                    return is_forward ? set_forward_tiles<Bits16RuleForwardChoice<dim>>(plan.tiles)
                                      : set_backward_tiles<Bits16RuleBackwardChoice<dim>>(plan.tiles);
            }
            refuse_unknown("attention: unknown kind of rule");
        });
    }

    /// Tiles from sm90/candidates.h must have a kernel for the call.
    template <class Candidates>
    auto candidate(const Candidates& candidates, int number) const {
        check(gpu.has_candidates,
              "attention: no kernels for forced tiles; expected a build with -DGRADTILE_TUNE=ON");
        check(has_candidate_kernels(problem, options),
              "attention: forced tiles have kernels for dense bf16 calls without score rules only");
        check(number >= 0 && number < static_cast<int>(candidates.size()), "attention: tiles ", number,
              "; expected 0 to ", static_cast<int>(candidates.size()) - 1);
        return candidates[static_cast<std::size_t>(number)];
    }

    HopperForwardTiles hopper_forward() const {
        if (choice.forward_tiles)
            return candidate(hopper_forward_candidates(head_dim), *choice.forward_tiles);
        const HopperRule rule = kernel_rule(hopper_rule(scores, has_row_ranges()), head_dim, is_packed());
        if (head_dim == hopper_short_head_dim && !is_packed() && rule == HopperRule::products &&
            mask.keys <= hopper_short_keys)
            return hopper_short_forward_tiles;
        return hopper_forward_tiles(head_dim, rule, is_packed());
    }
    void set_sm90_forward(FlashPlan& plan) const {
        const HopperForwardTiles tiles = hopper_forward();
        plan.tiles.consumers = tiles.consumers;
        plan.tiles.rows = tiles.rows();
        plan.tiles.keys = tiles.keys;
        plan.tiles.stages = tiles.stages;
        plan.tiles.q_stages = tiles.q_stages;
        plan.tiles.q_in_registers = tiles.q_in_registers;
        plan.tiles.in_turns = tiles.ordered;
        plan.tiles.candidate = choice.forward_tiles;
        const std::int64_t head_bytes = hopper_forward_head_bytes(
            mask.keys, head_dim, choice.forward_tiles ? head_dim : v_columns, problem.group());
        if (is_packed()) {
            const std::int64_t parts = packed_task_count(mask.queries, options.packed.count, tiles.rows());
            return set_launch(plan, hopper_set_heads(batch_heads, parts, head_bytes));
        }
        const std::int64_t row_blocks = ceil_div(mask.queries, tiles.rows());
        const bool sees_all = mask.left < 0 && mask.right < 0;
        // With row ranges, thread blocks take single row blocks, those that see the most keys first, from
        // sets of twice as many heads: under a causal mask at head dim 128, 6 heads took 495 us on an H200,
        // 12 took 463.
        const bool pairs = !has_row_ranges() && choice.pairs.value_or(hopper_forward_has_pairs(
                                                    batch_heads, row_blocks, gpu.processors, sees_all));
        plan.schedule.pairs = pairs;
        const device::TaskOrder order(batch_heads,
                                      static_cast<int>(pairs ? (row_blocks + 1) / 2 : row_blocks),
                                      has_row_ranges() ? head_bytes / 2 : head_bytes);
        const bool are_equal = !has_row_ranges() && hopper_forward_has_equal_tasks(mask, row_blocks, pairs);
        set_launch(plan, are_equal ? 1 : order.cached_heads);
    }
    void set_launch(FlashPlan& plan, int set_heads_by_policy) const {
        plan.schedule.launches = {{0, problem.batch, set_heads(batch_heads, set_heads_by_policy)}};
    }

    HopperBackwardTiles hopper_backward(int columns) const {
        if (choice.backward_tiles)
            return candidate(hopper_backward_candidates(columns), *choice.backward_tiles);
        return hopper_backward_tiles(columns, takes_registers(hopper_rule(scores, has_row_ranges())));
    }
    /// Sets tiles and sums; the launches have their batches, and get their sets.
    void set_sm90_backward(FlashPlan& plan) const {
        const bool has_columns = head_dim > hopper_backward_keys_max_head_dim;
        const int columns = padded_hopper_head_dim(head_dim);
        Schedule& schedule = plan.schedule;
        bool may_sum_in_ring = false;
        if (has_columns) {
            check(!choice.backward_tiles, "attention: forced tiles and a head dim of ", problem.head_dim(),
                  "; expected at most ", hopper_backward_keys_max_head_dim, " in the backward pass");
            plan.tiles.consumers = HopperColumnsTiles::consumers;
            plan.tiles.rows = HopperColumnsTiles::rows;
            plan.tiles.keys = HopperColumnsTiles::keys;
            schedule.d_q_addition = DqAddition::by_threads;
        } else {
            const HopperBackwardTiles tiles = hopper_backward(columns);
            plan.tiles.consumers = tiles.consumers;
            plan.tiles.rows = tiles.rows;
            plan.tiles.keys = tiles.keys;
            plan.tiles.stages = tiles.d_q_stages;
            plan.tiles.candidate = choice.backward_tiles;
            schedule.d_q_addition = DqAddition::in_bulk;
            may_sum_in_ring = tiles.may_sum_in_ring && !options.deterministic && !is_packed() &&
                              !has_row_ranges() && choice.ring.value_or(mask.keys <= hopper_ring_max_keys);
        }
        const std::int64_t key_blocks =
            is_packed() ? packed_task_count(mask.keys, options.packed.count, plan.tiles.keys)
                        : ceil_div(mask.keys, plan.tiles.keys);
        const auto sets_of = [&](std::int64_t batches) {
            const std::int64_t key_heads = batches * problem.key_heads,
                               head_bytes =
                                   problem.group() * padded_rows *
                                   hopper_backward_row_bytes(columns, has_columns ? v_columns : columns);
            return set_heads(key_heads, hopper_set_heads(key_heads, key_blocks, head_bytes));
        };
        if (may_sum_in_ring) {
            schedule.launches = {{0, problem.batch, sets_of(problem.batch)}};
            const std::int64_t sets = schedule.set_heads(),
                               more = choice.more_slots.value_or(hopper_more_slots(sets, key_blocks));
            schedule.d_q_addition = DqAddition::in_ring;
            schedule.ring_slots = static_cast<int>(
                std::min(problem.batch * problem.key_heads, sets + std::max<std::int64_t>(0, more)));
            return;
        }
        for (Schedule::Launch& launch : schedule.launches) launch.set_heads = sets_of(launch.batches);
    }

    /// Calls with biases often have many batches with short sequences. Float32 accumulators of dQ for all
    /// batches would then be the largest tensor of the pass, so the batches are divided into launches.
    std::vector<Schedule::Launch> divided_batches() const {
        constexpr std::int64_t max_sums = 12 << 20, enough_blocks = 2048;
        const auto at_least_1 = [](std::int64_t n) { return std::max<std::int64_t>(1, n); };
        std::int64_t batches = problem.batch;
        if (scores.has_biases() && problem.batch > 0) {
            const std::int64_t for_gpu = ceil_div(enough_blocks, at_least_1(problem.key_heads *
                                                                            ceil_div(problem.keys, 128))),
                               by_memory = max_sums / at_least_1(problem.heads * padded_rows * head_dim),
                               most =
                                   std::clamp<std::int64_t>(std::max(for_gpu, by_memory), 1, problem.batch);
            batches = ceil_div(problem.batch, ceil_div(problem.batch, most));
        }
        std::vector<Schedule::Launch> launches;
        for (std::int64_t first = 0; first < problem.batch; first += batches)
            launches.push_back({first, std::min(batches, problem.batch - first), 0});
        return launches;
    }
    /// A bias gradient's sum is divided into parts, so that there are about as many thread blocks as a large
    /// GPU has multiprocessors.
    std::int64_t parts_of_pair_bias(const BiasGradient& gradient) const {
        constexpr std::int64_t enough_blocks = 128, tile = 128;
        const std::int64_t tiles = std::int64_t{gradient.batches} * gradient.heads *
                                   ceil_div(problem.queries, tile) * ceil_div(problem.keys, tile),
                           summed = std::int64_t{gradient.summed_batches} * gradient.summed_heads;
        return std::clamp<std::int64_t>(enough_blocks / std::max<std::int64_t>(1, tiles), 1,
                                        std::max<std::int64_t>(1, summed));
    }
    /// Divides the gradient of the bias that a kernel of either family reads in tiles.
    void set_pair_bias_parts(FlashPlan& plan) const {
        const bool may_use_hopper = head_dim <= hopper_biases_max_head_dim && !is_packed() &&
                                    !scores.has_formula() && !scores.drops();
        int& pair_bias = plan.schedule.pair_bias;
        if (pair_bias < 0 && may_use_hopper && why_no_hopper_biases(scores, problem.dtype) == nullptr)
            pair_bias = bias_matrix_index(scores);
        const auto n = static_cast<std::size_t>(pair_bias);
        if (pair_bias < 0 || !problem.d_biases[n].defined()) return;
        plan.schedule.pair_bias_parts = static_cast<int>(parts_of_pair_bias(
            BiasGradient(problem.d_biases[n], scores.biases[n], problem.batch, problem.heads)));
    }
};

FlashPlan plan_16bit_forward(const Call16& call) {
    FlashPlan plan = call.start(Family::sm80, call.head_dim, "");
    add_table(plan, ScratchUse::row_tasks, call, call.problem.queries);
    add_row_ranges(plan, call);
    const FewQueriesPlan few_queries = few_queries_plan(call, call.head_dim);
    add_splits(plan, call, few_queries);
    if (few_queries) {
        const char* const why_not = call.why_no_sm90_few_queries(few_queries);
        plan.family = why_not == nullptr ? Family::few_sm90 : Family::few_sm80;
        plan.why = why_not != nullptr                               ? why_not
                   : few_queries.rows < hopper_few_queries_min_rows ? "they are forced"
                                                                    : "there are more than 32 rows";
        return plan;
    }
    call.set_rule(plan);
    const char* const why_not = call.why_no_sm90(call.problem.why_no_maps);
    if (why_not != nullptr) {
        plan.why = why_not;
        call.set_sm80_tiles(plan);
        return plan;
    }
    plan.family = Family::sm90;
    plan.why = "the GPU has wgmma and TMA";
    plan.rules = hopper_rule_text(hopper_rule(call.scores, call.has_row_ranges()));
    call.set_sm90_forward(plan);
    return plan;
}

FlashPlan plan_16bit_backward(const Call16& call) {
    const FlashProblem& problem = call.problem;
    const bool is_deterministic = call.options.deterministic;
    FlashPlan plan = call.start(Family::sm80, call.head_dim, "");
    call.set_rule(plan);
    const char* const why_not = call.why_no_sm90_backward();
    plan.schedule.launches = call.divided_batches();
    if (why_not == nullptr) {
        plan.family = Family::sm90;
        plan.why = "the GPU has wgmma and TMA";
        plan.rules = hopper_rule_text(hopper_rule(call.scores, call.has_row_ranges()));
        call.set_sm90_backward(plan);
    } else {
        plan.why = why_not;
        plan.schedule.d_q_addition =
            call.has_whole_heads() ? DqAddition::in_shared_memory : DqAddition::by_threads;
        call.set_sm80_tiles(plan);
    }
    call.set_pair_bias_parts(plan);
    const Schedule& schedule = plan.schedule;
    const std::int64_t batches = schedule.launches.empty() ? 0 : schedule.launches.front().batches,
                       heads = schedule.ring_slots > 0 ? schedule.ring_slots * problem.group()
                                                       : batches * problem.heads,
                       turns =
                           is_deterministic
                               ? call.batch_heads * (call.padded_rows / backward_row_padding) * backward_turns
                               : 0,
                       // A row block has at least 64 rows.
        ring_counters =
            is_deterministic || call.is_packed() ? 0 : call.batch_heads * (call.padded_rows / 64 + 1);
    add_scratch(plan, ScratchUse::statistics, {2, call.batch_heads, call.padded_rows}, DType::f32);
    add_scratch(plan, ScratchUse::d_q_sums,
                {heads, call.padded_rows, std::max(call.head_dim, padded_hopper_head_dim(call.head_dim))},
                DType::f32);
    add_scratch(plan, ScratchUse::turns, {turns + 1 + ring_counters}, DType::i32);
    const std::int64_t parts = schedule.pair_bias_parts;
    add_scratch(
        plan, ScratchUse::bias_sums,
        {parts > 1 ? parts * problem.d_biases[static_cast<std::size_t>(schedule.pair_bias)].elements() : 0},
        DType::f32);
    add_table(plan, ScratchUse::key_tasks, call, problem.keys);
    add_table(plan, ScratchUse::row_tasks, call, problem.queries);
    add_row_ranges(plan, call);
    return plan;
}

}  // namespace

FlashPlan plan_16bit(const Call& call) {
    return call.is_forward ? plan_16bit_forward({call}) : plan_16bit_backward({call});
}

ScoreOptions with_pair_bias_first(const ScoreOptions& scores) {
    ScoreOptions ordered = scores;
    if (!scores.scores_are_products && second_bias_comes_first(scores))
        std::swap(ordered.biases[0], ordered.biases[1]);
    return ordered;
}

bool has_candidate_kernels(const FlashProblem& problem, const ResolvedOptions& options) {
    return problem.dtype == DType::bf16 && !options.packed && !options.row_ranges &&
           options.scores.scores_are_products && (problem.pass == Pass::forward || !options.deterministic);
}

}  // namespace gradtile::attention::cuda
