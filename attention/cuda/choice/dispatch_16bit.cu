// 16-bit flash attention on the GPU: copies tensors whose layout kernels cannot read, allocates scratch
// memory, and launches the kernels. Requires sm_80 or later.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include <gradtile/attention/cuda/16bit/parameters.h>
#include <gradtile/attention/cuda/16bit/tiles.h>
#include <gradtile/attention/cuda/few_queries.h>
#include <gradtile/attention/cuda/hopper/hopper.h>
#include <gradtile/attention/cuda/hopper/tiles.h>
#include <gradtile/attention/cuda/kernels.h>
#include <gradtile/attention/internal/gpu_dtypes.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/core/internal/cuda_check.h>
#include <gradtile/core/internal/unknown_enumerator.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

using device::has_vector_rows;

// Kernels read and write 16 bytes (8 columns of a row) at a time. Copies are padded with zero columns, which
// change no result.
constexpr std::int64_t vector_columns = 8;
Readable readable(const Context& ctx, const Tensor& x) {
    return {ctx, x, has_vector_rows(x), vector_columns};
}
Writable writable(const Context& ctx, const Tensor& x) {
    return {ctx, x, x.dtype(), has_vector_rows(x), vector_columns};
}

device::TensorView<const std::uint16_t> view(const Readable& x) {
    return device::tensor_view<const std::uint16_t>(x.tensor());
}
device::TensorView<std::uint16_t> view(const Writable& x) {
    return device::tensor_view<std::uint16_t>(x.tensor());
}

/// A grid has at most 2^31 - 1 blocks, and each block takes at least 16 rows or ends a sequence.
void check_grid(const Tensor& q, const PackedSequences& packed) {
    const std::int64_t blocks = q.size(0) * (q.size(1) + 128) / 16 + packed.count + 1;
    check(q.size(2) * blocks < std::int64_t{1} << 31, "attention: ", q.size(0), " x ", q.size(2),
          " heads of ", q.size(1), " rows exceed a CUDA grid");
}

constexpr double log2_e = std::numbers::log2e;

/// Whether a bias can be copied 16 bytes at a time: neighbouring keys are adjacent in memory, and every row
/// begins at a multiple of 16 bytes.
bool has_tiles(const ScoreOptions::Bias& bias) {
    const std::int64_t chunk_elements = 16 / static_cast<std::int64_t>(size_of(bias.dtype));
    return bias.strides[3] == 1 && reinterpret_cast<std::uintptr_t>(bias.data) % 16 == 0 &&
           std::ranges::all_of(std::span(bias.strides).first(3),
                               [&](std::int64_t stride) { return stride % chunk_elements == 0; });
}
bool is_of_pairs(const ScoreOptions::Bias& bias, DType dtype) {
    return bias.data != nullptr && bias.dtype == dtype && bias.strides[2] != 0 && has_tiles(bias);
}
bool is_of_keys(const ScoreOptions::Bias& bias) {
    return bias.strides[2] == 0 && has_tiles(bias);
}

/// The options in the order that RuleKind::pair_bias kernels need: the pair bias is the first one.
struct KernelScores {
    ScoreOptions scores;
    RuleKind rule = RuleKind::any;
    int pair_bias = -1;  ///< its index among the call's biases, if the rule is RuleKind::pair_bias

    KernelScores(const ResolvedOptions& options, DType dtype, std::int64_t keys, int head_dim)
        : scores(options.scores) {
        if (scores.scores_are_products) {
            rule = RuleKind::none;
            return;
        }
        // The bias that differs between rows comes first. It is added last, so that all kernels of both
        // passes round the scores in the same order.
        auto& [first, second] = scores.biases;
        const bool is_second = first.data == nullptr || (first.strides[2] == 0 && second.strides[2] != 0);
        if (is_second) std::swap(first, second);
        if (options.packed || scores.has_formula()) return;
        if (scores.drops() && !scores.has_biases()) rule = RuleKind::dropout;
        if (!scores.drops() && keys % vector_columns == 0 && is_of_pairs(first, dtype) &&
            (second.data == nullptr || is_of_keys(second))) {
            rule = RuleKind::pair_bias;
            pair_bias = is_second ? 1 : 0;
        }
        if (!has_kernels(rule, head_dim)) {
            rule = RuleKind::any;
            pair_bias = -1;
        }
    }
};

/// Returns into how many parts a bias gradient's sum is divided, so that there are about as many thread
/// blocks as a large GPU has multiprocessors.
std::int64_t parts_of_pair_bias(const BiasGradient& gradient, std::int64_t queries, std::int64_t keys) {
    constexpr std::int64_t enough_blocks = 128, tile = 128;
    const std::int64_t tiles = std::int64_t{gradient.batches} * gradient.heads *
                               ((queries + tile - 1) / tile) * ((keys + tile - 1) / tile),
                       summed = std::int64_t{gradient.summed_batches} * gradient.summed_heads;
    return std::clamp<std::int64_t>(enough_blocks / std::max<std::int64_t>(1, tiles), 1,
                                    std::max<std::int64_t>(1, summed));
}

/// Returns for how many batches dQ is summed at the same time. Calls with biases often have many batches with
/// short sequences. Float32 accumulators for all batches would then be the largest tensor of the pass.
std::int64_t batches_at_once(const ScoreOptions& scores, std::int64_t batch_size, std::int64_t sums_of_batch,
                             std::int64_t blocks_of_batch) {
    constexpr std::int64_t max_sums = 12 << 20, enough_blocks = 2048;
    if (!scores.has_biases()) return batch_size;
    const std::int64_t for_gpu =
                           (enough_blocks + blocks_of_batch - 1) / std::max<std::int64_t>(1, blocks_of_batch),
                       by_memory = max_sums / std::max<std::int64_t>(1, sums_of_batch);
    const std::int64_t most =
        std::clamp<std::int64_t>(std::max(for_gpu, by_memory), 1, std::max<std::int64_t>(1, batch_size));
    const std::int64_t parts = (batch_size + most - 1) / most;
    return parts == 0 ? 0 : (batch_size + parts - 1) / parts;
}

/// Describes the kernels that `explain` names.
const char* hopper_rules(const ScoreOptions& scores) {
    switch (hopper_rule(scores)) {
        case HopperRule::products:
            return "";
        case HopperRule::distance_terms:
            return ", with terms of the distance";
        case HopperRule::dropout:
            return ", with dropout";
        case HopperRule::formula:
            return ", with a formula of the scores";
        case HopperRule::biases:
            return ", with biases";
    }
    refuse_unknown("attention: unknown rule of Hopper's kernels");
}

}  // namespace

void flash_16bit_forward(const Context& ctx, const ResolvedOptions& options, const Saved& saved) {
    const Tensor &q_in = saved.q, &k_in = saved.k, &v_in = saved.v, &o_out = saved.o, &lse = saved.lse;
    const device::DeviceMask mask(options.mask);
    check_grid(q_in, options.packed);
    const Readable q = readable(ctx, q_in), k = readable(ctx, k_in), v = readable(ctx, v_in);
    const Writable o = writable(ctx, o_out);
    const PackedOffsets packed(options);
    const Tensor row_tasks = packed_task_table(ctx, options.packed, q_in.size(1));
    const int head_dim =
        padded_head_dim(Bits16HeadDims{}, static_cast<int>(std::max(q_in.size(3), v_in.size(3))));
    const FewQueriesPlan few_queries = few_queries_plan(ctx, options, q_in, k_in, head_dim);
    const SplitResults splits(ctx, few_queries, v_in, lse);
    if (ctx.is_planning() || lse.elements() == 0) return;
    gradtile::cuda::use_device(ctx.device());
    for (const Readable* x : {&q, &k, &v}) x->load(ctx);
    if (!few_queries && !why_not_hopper(options, {q.tensor(), k.tensor(), v.tensor(), o.tensor()})) {
        hopper_forward(ctx, options, q.tensor(), k.tensor(), v.tensor(), o.tensor(), lse,
                       packed_tasks_in(row_tasks));
        return o.store(ctx);
    }
    KernelScores kernel(options, q_in.dtype(), k_in.size(1), head_dim);
    if (few_queries && kernel.rule != RuleKind::none) kernel.rule = RuleKind::any;
    // The softmax maximum is taken after S is multiplied by prescale, and rules apply to products with the
    // whole scale.
    const bool scales_late =
        options.scale > 0 && (kernel.rule == RuleKind::none || kernel.rule == RuleKind::dropout);
    const Bits16ForwardParameters parameters{
        .q = view(q),
        .k = view(k),
        .v = view(v),
        .o = view(o),
        .lse = lse.data<float>(),
        .lse_remainder = data_or_null<float>(saved.lse_remainder),
        .non_finite = non_finite_flag(options),
        .batch_size = static_cast<int>(q_in.size(0)),
        .sizes = device::sizes_of(q.tensor(), k.tensor(), v.tensor()),
        .mask = mask,
        .scale_log2 = static_cast<float>(scales_late ? log2_e * options.scale : log2_e),
        .prescale = scales_late ? 1.0f : static_cast<float>(options.scale),
        .scores = kernel.scores,
        .rule = kernel.rule,
        .packed = packed,
        .row_tasks = {packed_tasks_in(row_tasks)}};
    const auto stream = static_cast<cudaStream_t>(ctx.stream());
    if (few_queries) {
        const SplitParameters split = splits.parameters(few_queries, options.mask);
        const auto launch =
            visit_16bit(q_in.dtype(), []<class T>(TypeTag<T>) { return launch_few_queries<T>; });
        if (why_not_hopper_few_queries(options, few_queries, head_dim,
                                       {q.tensor(), k.tensor(), v.tensor()})) {
            launch(parameters, split, stream);
        } else {
            hopper_few_queries(ctx, k.tensor(), v.tensor(), parameters, split);
        }
        find_non_finite(ctx, options, o.tensor());
    } else {
        visit_16bit(q_in.dtype(), [&]<class T>(TypeTag<T>) { launch_forward<T>(parameters, stream); });
    }
    o.store(ctx);
}

static std::string explain_kernels(const Context& ctx, const ResolvedOptions& options, const Tensor& q,
                                   const Tensor& k, const Tensor& v) {
    const int head_dim = padded_head_dim(Bits16HeadDims{}, static_cast<int>(std::max(q.size(3), v.size(3))));
    const char* rules = options.scores.scores_are_products ? "" : ", with score rules";
    gradtile::cuda::use_device(ctx.device());
    if (const FewQueriesPlan plan = few_queries_plan(ctx, options, q, k, head_dim)) {
        const char* const why_not = why_not_hopper_few_queries(options, plan, head_dim, {q, k, v});
        return concat(explain(plan, head_dim, options),
                      why_not == nullptr ? "; Hopper's asynchronous products and copies"
                                         : concat("; no Hopper kernel, because ", why_not));
    }
    const char* const why_not = why_not_hopper(options, {q, k, v});
    if (why_not == nullptr)
        return concat("long queries: Hopper's asynchronous products and copies; head dim ", head_dim,
                      hopper_rules(options.scores), options.packed ? ", packed sequences" : "");
    const RuleKind kind = KernelScores(options, q.dtype(), k.size(1), head_dim).rule;
    if (kind == RuleKind::dropout) rules = ", with dropout";
    if (kind == RuleKind::pair_bias) rules = ", with a bias in tiles";
    return concat("long queries: a thread block for each block of rows; head dim ", head_dim, rules,
                  options.packed ? ", packed sequences" : "", "; no Hopper kernels, because ", why_not);
}

std::string explain_16bit_forward(const Context& ctx, const ResolvedOptions& options, const Tensor& q,
                                  const Tensor& k, const Tensor& v) {
    std::string forward = explain_kernels(ctx, options, q, k, v);
    if (!options.scores.has_biases()) return forward;
    // With biases, one pass may use the Hopper kernels and the other one not.
    const char* const why_not =
        why_not_hopper_backward(options, device::sizes_of(q, k, v), q.size(0) * q.size(2), {q, k, v});
    if (why_not != nullptr) return concat(forward, "; backward: no Hopper kernels, because ", why_not);
    return concat(forward, "; backward: Hopper's asynchronous products and copies",
                  hopper_rules(options.scores));
}

void flash_16bit_backward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                          const OutputGradients& d_out, const Gradients& into) {
    const device::DeviceMask mask(options.mask);
    check_grid(saved.q, options.packed);
    const Readable q = readable(ctx, saved.q), k = readable(ctx, saved.k), v = readable(ctx, saved.v),
                   o = readable(ctx, saved.o), d_o = readable(ctx, d_out.o);
    const device::Sizes sizes = device::sizes_of(q.tensor(), k.tensor(), v.tensor());
    const Writable d_q = writable(ctx, into.q), d_k = writable(ctx, into.k), d_v = writable(ctx, into.v);
    const PackedOffsets packed(options);
    const std::int64_t padded_rows = options.packed ? padded_packed_rows(options.packed, saved.q.size(1))
                                                    : (saved.q.size(1) + backward_row_padding - 1) /
                                                          backward_row_padding * backward_row_padding;
    const std::int64_t batch_heads = saved.q.size(0) * saved.q.size(2);
    const int head_dim = padded_head_dim(Bits16HeadDims{}, std::max(sizes.qk_dim, sizes.v_dim));
    const Tensor statistics = empty(ctx, {2, batch_heads, padded_rows}, DType::f32);
    const std::int64_t batch_size = saved.q.size(0);
    // A dry run does not know the GPU. So it counts dQ accumulators for all heads, which kernels without the
    // ring need.
    if (!ctx.is_planning()) gradtile::cuda::use_device(ctx.device());
    const bool uses_hopper =
        !ctx.is_planning() && !why_not_hopper_backward(options, sizes, batch_heads,
                                                       {q.tensor(), k.tensor(), v.tensor(), o.tensor(),
                                                        d_o.tensor(), d_k.tensor(), d_v.tensor()});
    const DqRing ring = uses_hopper ? d_q_ring(options, sizes, batch_heads, padded_rows) : DqRing{};
    const std::int64_t batches =
        ring.slots > 0 ? batch_size
                       : batches_at_once(options.scores, batch_size, saved.q.size(2) * padded_rows * head_dim,
                                         saved.k.size(2) * ((saved.k.size(1) + 127) / 128));
    const int max_sums_columns = std::max(head_dim, padded_hopper_head_dim(head_dim)),
              sums_columns = uses_hopper ? padded_hopper_head_dim(head_dim) : head_dim;
    const Tensor d_q_sums =
        empty(ctx,
              {ring.slots > 0 ? std::int64_t{ring.slots} * sizes.group : batches * saved.q.size(2),
               padded_rows, max_sums_columns},
              DType::f32);
    const std::int64_t turns_per_block = options.deterministic ? backward_turns : 0;
    const std::int64_t turn_count = batch_heads * (padded_rows / backward_row_padding) * turns_per_block;
    // An upper bound, which a dry run can also compute: a row block has at least 64 rows.
    const std::int64_t ring_counters =
        options.deterministic || options.packed ? 0 : batch_heads * (padded_rows / 64 + 1);
    const Readable d_lse = contiguous(ctx, d_out.lse);
    const Tensor turns = empty(ctx, {turn_count + 1 + ring_counters}, DType::i32);
    const KernelScores kernel(options, saved.q.dtype(), saved.k.size(1), head_dim);
    // A dry run counts the parts that any GPU needs.
    const bool may_use_hopper = head_dim <= hopper_biases_max_head_dim && !options.packed &&
                                !options.scores.has_formula() && !options.scores.drops();
    const int pair_bias =
        kernel.pair_bias < 0 && may_use_hopper && !why_no_hopper_biases(options.scores, saved.q.dtype())
            ? bias_matrix_index(options.scores)
            : kernel.pair_bias;
    std::int64_t parts = 1;
    if (pair_bias >= 0) {
        const auto n = static_cast<std::size_t>(pair_bias);
        if (const Tensor& d_bias = into.biases[n]; d_bias.defined())
            parts = parts_of_pair_bias(
                BiasGradient(d_bias, options.scores.biases[n], batch_size, saved.q.size(2)), saved.q.size(1),
                saved.k.size(1));
    }
    const Tensor part_sums =
        empty(ctx, {parts > 1 ? parts * into.biases[static_cast<std::size_t>(pair_bias)].elements() : 0},
              DType::f32);
    const Tensor key_tasks = packed_task_table(ctx, options.packed, saved.k.size(1)),
                 padded_tasks = packed_task_table(ctx, options.packed, saved.q.size(1));
    if (ctx.is_planning()) return;
    for (const Readable* x : {&q, &k, &v, &o, &d_o, &d_lse}) x->load(ctx);
    Bits16BackwardParameters parameters{
        .q = view(q),
        .k = view(k),
        .v = view(v),
        .o = view(o),
        .d_o = view(d_o),
        .d_q = view(d_q),
        .d_k = view(d_k),
        .d_v = view(d_v),
        .lse = saved.lse.data<float>(),
        .lse_remainder = data_or_null<float>(saved.lse_remainder),
        .d_lse = d_out.lse.defined() ? d_lse.tensor().data<float>() : nullptr,
        .lse_log2 = statistics.data<float>(),
        .delta = statistics.data<float>() + batch_heads * padded_rows,
        .non_finite = non_finite_flag(options),
        .has_large_lse = large_lse_flag(options),
        .d_q_sums = d_q_sums.data<float>(),
        .turns = options.deterministic ? turns.data<std::int32_t>() : nullptr,
        .next_task = options.deterministic ? turns.data<std::int32_t>() + turn_count : nullptr,
        .first_batch = 0,
        .batch_size = static_cast<int>(batches),
        .sizes = sizes,
        .padded_rows = static_cast<int>(padded_rows),
        .mask = mask,
        .scale_log2 = static_cast<float>(log2_e * options.scale),
        .scale = static_cast<float>(options.scale),
        .dropout_scale = static_cast<float>(options.scores.dropout.scale),
        .scores = kernel.scores,
        .rule = kernel.rule,
        .packed = packed,
        .key_tasks = {packed_tasks_in(key_tasks)},
        .padded_tasks = {packed_tasks_in(padded_tasks)}};
    const auto make_sink_gradient = [&] {
        if (into.sink.defined())
            launch_sink_gradient(ctx, options.scores, saved.lse, parameters.delta, padded_rows,
                                 double{p_factor} * options.scores.dropout.scale, into.sink, packed);
    };
    const HopperBackwardTensors tensors{.q = q.tensor(),
                                        .k = k.tensor(),
                                        .v = v.tensor(),
                                        .d_o = d_o.tensor(),
                                        .d_k = d_k.tensor(),
                                        .d_v = d_v.tensor(),
                                        .ring = ring};
    if (uses_hopper) parameters.next_task = turns.data<std::int32_t>() + turn_count;
    const auto launch = visit_16bit(saved.q.dtype(), []<class T>(TypeTag<T>) { return launch_backward<T>; });
    const auto stream = static_cast<cudaStream_t>(ctx.stream());
    for (std::int64_t first = 0; saved.q.elements() + saved.k.elements() > 0 && first < batch_size;
         first += batches) {
        parameters.first_batch = static_cast<int>(first);
        parameters.batch_size = static_cast<int>(std::min(batches, batch_size - first));
        parameters.d_q_sums = d_q_sums.data<float>() - first * saved.q.size(2) * padded_rows * sums_columns;
        if (uses_hopper) {
            hopper_backward(ctx, tensors, parameters);
        } else {
            launch(parameters, stream);
        }
    }
    for (const Writable* x : {&d_q, &d_k, &d_v}) x->store(ctx);
    const auto launch_any_bias =
        visit_16bit(saved.q.dtype(), []<class T>(TypeTag<T>) { return launch_bias_gradient<T>; });
    const auto launch_pair_bias =
        visit_16bit(saved.q.dtype(), []<class T>(TypeTag<T>) { return launch_pair_bias_gradient<T>; });
    for (std::size_t n = 0; n < max_biases; ++n) {
        const Tensor& d_bias = into.biases[n];
        if (!d_bias.defined() || d_bias.elements() == 0) continue;
        const BiasGradient gradient(d_bias, options.scores.biases[n], batch_size, saved.q.size(2));
        const BiasGradientParts parts_of_sum{static_cast<int>(parts), part_sums.data<float>()};
        if (uses_hopper && pair_bias == static_cast<int>(n) && !gradient.sums_rows && !gradient.sums_keys) {
            hopper_pair_bias_gradient(ctx, tensors, parameters, gradient, parts_of_sum);
        } else if (kernel.pair_bias == static_cast<int>(n)) {
            launch_pair_bias(parameters, gradient, parts_of_sum, stream);
        } else {
            launch_any_bias(parameters, gradient, stream);
        }
    }
    make_sink_gradient();
}

}  // namespace gradtile::attention::cuda
