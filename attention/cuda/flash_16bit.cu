// Runs plans for 16-bit flash attention: copies tensors whose layout kernels cannot read, fills in the
// kernels' parameters and enqueues the kernels of sm80/ or sm90/.
#include <cmath>
#include <numbers>

#include <gradtile/attention/cuda/passes.h>
#include <gradtile/attention/cuda/plan.h>
#include <gradtile/attention/cuda/sm80/launch.h>
#include <gradtile/attention/cuda/sm90/hopper.h>
#include <gradtile/attention/internal/gpu_dtypes.h>
#include <gradtile/attention/internal/kernel_views.h>
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

/// A backward pass's tensors in layouts that kernels can read and write, and its scratch memory.
struct BackwardTensors {
    Readable q, k, v, o, d_o;
    Writable d_q, d_k, d_v;
    Readable d_lse;
    Scratch scratch;

    BackwardTensors(const Context& ctx, const FlashPlan& plan, const Saved& saved,
                    const OutputGradients& d_out, const Gradients& into)
        : q(readable(ctx, saved.q)),
          k(readable(ctx, saved.k)),
          v(readable(ctx, saved.v)),
          o(readable(ctx, saved.o)),
          d_o(readable(ctx, d_out.o)),
          d_q(writable(ctx, into.q)),
          d_k(writable(ctx, into.k)),
          d_v(writable(ctx, into.v)),
          d_lse(contiguous(ctx, d_out.lse)),
          scratch(ctx, plan) {}
    void load(const Context& ctx) const {
        for (const Readable* x : {&q, &k, &v, &o, &d_o, &d_lse}) x->load(ctx);
    }
    void store(const Context& ctx) const {
        for (const Writable* x : {&d_q, &d_k, &d_v}) x->store(ctx);
    }
};

Bits16BackwardParameters backward_parameters(const FlashPlan& plan, const ResolvedOptions& options,
                                             const Saved& saved, const BackwardTensors& x) {
    const Scratch& scratch = x.scratch;
    const Tensor statistics = scratch[ScratchUse::statistics], turns = scratch[ScratchUse::turns];
    // The counter of started tasks follows the turns, and the ring's counters follow it.
    const bool has_turns = options.deterministic, has_task_counter = has_turns || plan.family == Family::sm90;
    const std::int64_t padded_rows = statistics.size(2), statistics_rows = statistics.size(1) * padded_rows,
                       turn_count = has_turns ? statistics_rows / backward_row_padding * backward_turns : 0;
    return {.q = view(x.q),
            .k = view(x.k),
            .v = view(x.v),
            .o = view(x.o),
            .d_o = view(x.d_o),
            .d_q = view(x.d_q),
            .d_k = view(x.d_k),
            .d_v = view(x.d_v),
            .lse = saved.lse.data<float>(),
            .lse_remainder = data_or_null<float>(saved.lse_remainder),
            .d_lse = data_or_null<float>(x.d_lse.tensor()),
            .lse_log2 = statistics.data<float>(),
            .delta = statistics.data<float>() + statistics_rows,
            .non_finite = non_finite_flag(options),
            .has_large_lse = large_lse_flag(options),
            .d_q_sums = scratch[ScratchUse::d_q_sums].data<float>(),
            .turns = has_turns ? turns.data<std::int32_t>() : nullptr,
            .next_task = has_task_counter ? turns.data<std::int32_t>() + turn_count : nullptr,
            .first_batch = 0,
            .batch_size = static_cast<int>(saved.q.size(0)),
            .sizes = device::sizes_of(x.q.tensor(), x.k.tensor(), x.v.tensor()),
            .padded_rows = static_cast<int>(padded_rows),
            .mask = device::DeviceMask(options.mask),
            .scale_log2 = static_cast<float>(log2_e * options.scale),
            .scale = static_cast<float>(options.scale),
            .dropout_scale = static_cast<float>(options.scores.dropout.scale),
            .scores = with_pair_bias_first(options.scores),
            .rule = plan.rule,
            .packed = PackedOffsets(options),
            .key_tasks = {packed_tasks_in(scratch[ScratchUse::key_tasks])},
            .padded_tasks = {packed_tasks_in(scratch[ScratchUse::row_tasks])},
            .row_ranges = {}};
}

}  // namespace

void flash_16bit_forward(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                         const Saved& saved) {
    const device::DeviceMask mask(options.mask);
    check_grid(saved.q, options.packed);
    const Readable q = readable(ctx, saved.q), k = readable(ctx, saved.k), v = readable(ctx, saved.v);
    const Writable o = writable(ctx, saved.o);
    const Scratch scratch(ctx, plan);
    if (ctx.is_planning() || saved.lse.elements() == 0) return;
    gradtile::cuda::use_device(ctx.device());
    for (const Readable* x : {&q, &k, &v}) x->load(ctx);
    PackedTask* const row_tasks = packed_tasks_in(scratch[ScratchUse::row_tasks]);
    const DeviceRowRanges row_ranges = launch_row_ranges(ctx, options, saved.q.size(0), saved.q.size(2),
                                                         plan.tiles.keys, scratch[ScratchUse::row_ranges]);
    if (plan.family == Family::sm90) {
        hopper_forward(ctx, plan, options, q.tensor(), k.tensor(), v.tensor(), o.tensor(), saved.lse,
                       row_tasks, row_ranges);
        return o.store(ctx);
    }
    // The softmax maximum is taken after S is multiplied by prescale, and rules apply to products with the
    // whole scale.
    const bool scales_late =
        options.scale > 0 && (plan.rule == RuleKind::none || plan.rule == RuleKind::dropout);
    const Bits16ForwardParameters parameters{
        .q = view(q),
        .k = view(k),
        .v = view(v),
        .o = view(o),
        .lse = saved.lse.data<float>(),
        .lse_remainder = data_or_null<float>(saved.lse_remainder),
        .non_finite = non_finite_flag(options),
        .batch_size = static_cast<int>(saved.q.size(0)),
        .sizes = device::sizes_of(q.tensor(), k.tensor(), v.tensor()),
        .mask = mask,
        .scale_log2 = static_cast<float>(scales_late ? log2_e * options.scale : log2_e),
        .prescale = scales_late ? 1.0f : static_cast<float>(options.scale),
        .scores = with_pair_bias_first(options.scores),
        .rule = plan.rule,
        .packed = PackedOffsets(options),
        .row_tasks = {row_tasks},
        .row_ranges = row_ranges};
    const auto stream = static_cast<cudaStream_t>(ctx.stream());
    if (takes_few_queries(plan.family)) {
        const SplitParameters split =
            split_parameters(plan.schedule.few_queries, options.mask, scratch[ScratchUse::split_o],
                             scratch[ScratchUse::split_lse]);
        if (plan.family == Family::few_sm90) {
            hopper_few_queries(ctx, k.tensor(), v.tensor(), parameters, split);
        } else {
            visit_16bit(saved.q.dtype(),
                        [&]<class T>(TypeTag<T>) { launch_few_queries<T>(parameters, split, stream); });
        }
        find_non_finite(ctx, options, o.tensor());
    } else {
        visit_16bit(saved.q.dtype(),
                    [&]<class T>(TypeTag<T>) { launch_forward<T>(parameters, plan.tiles, stream); });
    }
    o.store(ctx);
}

void flash_16bit_backward(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                          const Saved& saved, const OutputGradients& d_out, const Gradients& into) {
    const device::DeviceMask mask(options.mask);  // throws if a sequence is too long, also in a dry run
    check_grid(saved.q, options.packed);
    const BackwardTensors x(ctx, plan, saved, d_out, into);
    if (ctx.is_planning()) return;
    gradtile::cuda::use_device(ctx.device());
    x.load(ctx);
    const bool uses_hopper = plan.family == Family::sm90;
    const auto stream = static_cast<cudaStream_t>(ctx.stream());
    const DType dtype = saved.q.dtype();
    Bits16BackwardParameters parameters = backward_parameters(plan, options, saved, x);
    parameters.row_ranges = launch_row_ranges(ctx, options, saved.q.size(0), saved.q.size(2), plan.tiles.keys,
                                              x.scratch[ScratchUse::row_ranges]);
    HopperBackwardTensors tensors{.q = x.q.tensor(),
                                  .k = x.k.tensor(),
                                  .v = x.v.tensor(),
                                  .d_o = x.d_o.tensor(),
                                  .d_k = x.d_k.tensor(),
                                  .d_v = x.d_v.tensor(),
                                  .ring = {.slots = plan.schedule.ring_slots}};
    const std::int64_t sums_columns =
        uses_hopper ? padded_hopper_head_dim(plan.tiles.head_dim) : plan.tiles.head_dim;
    float* const d_q_sums = parameters.d_q_sums;
    for (const Schedule::Launch& launch : plan.schedule.launches) {
        if (saved.q.elements() + saved.k.elements() == 0) break;
        parameters.first_batch = static_cast<int>(launch.first_batch);
        parameters.batch_size = static_cast<int>(launch.batches);
        parameters.d_q_sums =
            d_q_sums - launch.first_batch * saved.q.size(2) * parameters.padded_rows * sums_columns;
        tensors.ring.set_heads = launch.set_heads;
        if (uses_hopper) {
            hopper_backward(ctx, plan, tensors, parameters);
        } else {
            visit_16bit(dtype, [&]<class T>(TypeTag<T>) { launch_backward<T>(parameters, plan, stream); });
        }
    }
    x.store(ctx);
    if (options.packed) {
        visit_16bit(dtype, [&]<class T>(TypeTag<T>) {
            launch_bias_gradients<T>(ctx, options,
                                     {.q = x.q.tensor(),
                                      .k = x.k.tensor(),
                                      .v = x.v.tensor(),
                                      .o = x.o.tensor(),
                                      .d_o = x.d_o.tensor(),
                                      .lse = parameters.lse,
                                      .lse_remainder = parameters.lse_remainder,
                                      .d_lse = parameters.d_lse},
                                     into);
        });
    }
    const BiasGradientParts parts{plan.schedule.pair_bias_parts,
                                  x.scratch[ScratchUse::bias_sums].data<float>()};
    for (std::size_t n = 0; n < max_biases; ++n) {
        const Tensor& d_bias = into.biases[n];
        if (!d_bias.defined() || d_bias.elements() == 0 || options.packed) continue;
        const BiasGradient gradient(d_bias, options.scores.biases[n], saved.q.size(0), saved.q.size(2));
        const bool is_pair_bias = plan.schedule.pair_bias == static_cast<int>(n);
        visit_16bit(dtype, [&]<class T>(TypeTag<T>) {
            if (uses_hopper && is_pair_bias && !gradient.sums_rows && !gradient.sums_keys) {
                hopper_pair_bias_gradient(ctx, tensors, parameters, gradient, parts);
            } else if (plan.rule == RuleKind::pair_bias && is_pair_bias) {
                launch_pair_bias_gradient<T>(parameters, plan.tiles, gradient, parts, stream);
            } else {
                launch_bias_gradient<T>(parameters, plan.tiles, gradient, stream);
            }
        });
    }
    if (into.sink.defined())
        launch_sink_gradient(ctx, options.scores, saved.lse, parameters.delta, parameters.padded_rows,
                             double{p_factor} * options.scores.dropout.scale, into.sink, parameters.packed);
}

}  // namespace gradtile::attention::cuda
