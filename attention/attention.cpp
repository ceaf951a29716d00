#include <gradtile/attention/attention.h>

#include <algorithm>
#include <ostream>

#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/internal/checks.h>
#include <gradtile/attention/internal/flash_plan.h>
#include <gradtile/attention/internal/gpu_dtypes.h>
#include <gradtile/attention/internal/hidden_by_biases.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/attention/internal/max_logits_backend.h>
#include <gradtile/attention/internal/seen_part.h>
#include <gradtile/core/enum_names.h>
#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
template <>
struct EnumNames<attention::Algorithm> {
    using enum attention::Algorithm;
    static constexpr std::array names = {std::pair{flash2, std::string_view("flash2")},
                                         std::pair{naive, std::string_view("naive")},
                                         std::pair{memory_efficient, std::string_view("memory_efficient")},
                                         std::pair{flash1, std::string_view("flash1")}};
};
}  // namespace gradtile

namespace gradtile::attention {
namespace {

constexpr std::int64_t max_head_dim = 256;

/// Throws an Error that names the first option which the algorithm does not support on the device.
void refuse_unavailable_options(Device device, const Options& options) {
    const bool is_dense_only =
        options.algorithm == Algorithm::memory_efficient || options.algorithm == Algorithm::flash1;
    refuse_unsupported("attention",
                       is_dense_only ? Method::dense_only
                       : device.is_cuda() && options.algorithm == Algorithm::flash2
                           ? Method::flash2_on_gpu
                           : Method::dense_and_packed,
                       options);
}

bool is_packed(const Options& options) {
    return options.cumulative_q.defined() || options.cumulative_k.defined();
}

void check_offsets(const char* name, const Tensor& offsets, const Tensor& q) {
    check(offsets.defined(), "attention: packed sequences need cumulative_q and cumulative_k; ", name,
          " is not set");
    check(offsets.rank() == 1 && offsets.dtype() == DType::i32 && offsets.is_contiguous() &&
              offsets.size(0) >= 1 && offsets.device() == q.device(),
          "attention: ", name, " is ", offsets, ", expected contiguous int32 [sequences + 1] on ",
          q.device());
}

PackedSequences resolve_packed(const Options& options, const Tensor& q) {
    if (!is_packed(options)) return {};
    check_offsets("cumulative_q", options.cumulative_q, q);
    check_offsets("cumulative_k", options.cumulative_k, q);
    const std::int64_t count = options.cumulative_q.size(0) - 1;
    check(options.cumulative_k.size(0) == count + 1, "attention: cumulative_q has ", count,
          " sequences, cumulative_k ", options.cumulative_k.size(0) - 1);
    return {options.cumulative_q, options.cumulative_k, count, options.top_left};
}

/// Backends see keys or values that all batches of q share as equal batches.
Tensor with_batch_of(const Tensor& q, const Tensor& x) {
    return x.rank() == 3 ? with_batch_axis(x, 4) : x.expand({q.size(0), x.size(1), x.size(2), x.size(3)});
}
Saved saved_with_batch_axis(const Saved& x) {
    return {with_batch_axis(x.q, 4),
            with_batch_of(x.q, x.k),
            with_batch_of(x.q, x.v),
            with_batch_axis(x.o, 4),
            with_batch_axis(x.lse, 3),
            with_batch_axis(x.lse_remainder, 3),
            x.row_max,
            x.row_sum};
}

void check_inputs(const Options& options, const Tensor& q, const Tensor& k, const Tensor& v) {
    const int rank = is_packed(options) ? 3 : 4;
    check(q.rank() == rank && k.rank() == rank && v.rank() == rank, "attention: q, k, v must be [",
          rank == 3 ? "rows" : "batch, length", ", heads, head_dim]: q ", q, ", k ", k, ", v ", v);
    check(is_floating(q.dtype()) && k.dtype() == q.dtype() && v.dtype() == q.dtype(),
          "attention: q, k, v must share one floating dtype: q ", q, ", k ", k, ", v ", v);
    if (q.device().is_cuda()) require_gpu_kernels(q.dtype());
    check(rank == 3 || ((k.size(0) == q.size(0) || k.size(0) == 1) && v.size(0) == k.size(0)),
          "attention: batch sizes differ: q ", q, ", k ", k, ", v ", v,
          "; expected that of q or 1 for k and v");
    check(v.size(-3) == k.size(-3) && v.size(-2) == k.size(-2),
          "attention: k and v must agree in length and heads: k ", k, ", v ", v);
    const std::int64_t query_heads = q.size(-2), key_heads = k.size(-2);
    check(key_heads > 0 ? query_heads > 0 && query_heads % key_heads == 0 : query_heads == 0,
          "attention: ", query_heads, " query heads are not a multiple of ", key_heads, " key/value heads");
    check(k.size(-1) == q.size(-1), "attention: head_dim of q is ", q.size(-1), ", of k ", k.size(-1));
    for (const std::int64_t d : {q.size(-1), v.size(-1)})
        check(d >= 1 && d <= max_head_dim, "attention: head_dim ", d, " is not in 1..", max_head_dim);
}

Shape output_shape(const Tensor& q, const Tensor& v) {
    Shape shape = q.shape();
    shape[q.rank() - 1] = v.size(-1);
    return shape;
}
Shape lse_shape(const Tensor& q) {
    return q.rank() == 3 ? Shape{q.size(1), q.size(0)} : Shape{q.size(0), q.size(2), q.size(1)};
}

/// A tensor that a call writes shares no memory with the options' tensors.
void check_options_apart(const Context& ctx, const Operand& written, const Options& options) {
    check_sharing(ctx, "attention", written,
                  {{"biases[0]", options.biases[0]},
                   {"biases[1]", options.biases[1]},
                   {"alibi_slopes", options.alibi_slopes},
                   {"sink", options.sink},
                   {"row_ranges", options.row_ranges},
                   {"cumulative_q", options.cumulative_q},
                   {"cumulative_k", options.cumulative_k}});
}

/// A tensor that a call writes.
void check_output(const char* name, const Tensor& x, const Shape& shape, DType dtype) {
    check_like(name, x, shape, dtype);
    check_distinct_elements("attention", {name, x});
}

/// Throws Error if a gradient shares memory with another gradient or with an operand.
void check_gradient_sharing(const Context& ctx, const Tensor& d_o, const Options& options, const Saved& saved,
                            const Gradients& into, const Tensor& d_lse) {
    static_assert(max_biases == 2);
    const Operand gradients[] = {{"gradient of q", into.q},
                                 {"gradient of k", into.k},
                                 {"gradient of v", into.v},
                                 {"gradient of biases[0]", into.biases[0]},
                                 {"gradient of biases[1]", into.biases[1]},
                                 {"gradient of the sink", into.sink}};
    for (const Operand& gradient : gradients) {
        check_sharing(ctx, "attention", gradient,
                      {{"q", saved.q},
                       {"k", saved.k},
                       {"v", saved.v},
                       {"o", saved.o},
                       {"lse", saved.lse},
                       {"lse_remainder", saved.lse_remainder},
                       {"row_max", saved.row_max},
                       {"row_sum", saved.row_sum},
                       {"d_o", d_o},
                       {"d_lse", d_lse}});
        check_options_apart(ctx, gradient, options);
        for (const Operand* other = gradients; other != &gradient; ++other)
            check_sharing(ctx, "attention", gradient, {*other});
    }
}

void check_option_gradients(const Options& options, const Gradients& into, const Tensor& q) {
    for (std::size_t n = 0; n < max_biases; ++n) {
        const Tensor &bias = options.biases[n], &gradient = into.biases[n];
        if (!gradient.defined()) continue;
        check(bias.defined(), "attention: a gradient of biases[", n, "] without that bias");
        check_like("gradient of a bias", gradient, bias.shape(), bias.dtype());
        for (int axis = 0; axis < bias.rank(); ++axis)
            check(bias.size(axis) == 1 || bias.elements() == 0 ||
                      (bias.stride(axis) == 0) == (gradient.stride(axis) == 0),
                  "attention: gradient of a bias ", gradient, " has stride ", gradient.stride(axis),
                  " along axis ", axis, ", and biases[", n, "] has ", bias.stride(axis),
                  "; expected 0 where the bias has 0, because the gradient is a sum there");
    }
    if (!into.sink.defined()) return;
    check(options.sink.defined(), "attention: a gradient of the sink without a sink");
    check_per_head("gradient of sink", into.sink, q);
    check_distinct_elements("attention", {"gradient of sink", into.sink});
}

/// A new tensor with x's shape and dtype, and with stride 0 along the axes where x has stride 0.
Tensor empty_broadcast_like(const Context& ctx, const Tensor& x) {
    Shape shape = x.shape();
    for (int axis = 0; axis < x.rank(); ++axis)
        if (x.stride(axis) == 0 && shape[axis] > 1) shape[axis] = 1;
    return empty(ctx, shape, x.dtype()).expand(x.shape());
}

/// The gradient of keys or values. Where all batches share them, kernels write one gradient per batch, and
/// store() adds these in float32 (float64 for float64), in batch order.
class KeyGradient {
  public:
    KeyGradient(const Context& ctx, const Tensor& into, std::int64_t batch)
        : into_(into), batch_gradients_(into) {
        if (into.size(0) == batch) return;
        batch_gradients_ = empty(ctx, {batch, into.size(1), into.size(2), into.size(3)}, into.dtype());
        sum_ = empty(ctx, into.shape(), accumulator_of(into.dtype()));
    }
    const Tensor& batch_gradients() const { return batch_gradients_; }
    void store(const Context& ctx) const {
        if (!sum_.defined() || ctx.is_planning()) return;
        fill(ctx, sum_, 0);
        for (std::int64_t b = 0; b < batch_gradients_.size(0); ++b)
            axpy(ctx, sum_, 1, batch_gradients_.slice(0, b, 1));
        copy(ctx, into_, sum_);
    }

  private:
    Tensor into_, batch_gradients_, sum_;
};

/// Whether the forward pass writes Saved::lse_remainder. On a GPU, naive and flash1 do not read it.
bool keeps_remainder(const Context& ctx, const Options& options) {
    if (ctx.device().is_cpu()) return true;
    return (options.algorithm == Algorithm::flash2 || options.algorithm == Algorithm::memory_efficient) &&
           std::ranges::any_of(options.biases, [](const Tensor& bias) { return bias.defined(); });
}

/// See ResolvedOptions::flags.
Tensor device_flags(const Context& ctx, const ResolvedOptions& options) {
    if (ctx.device().is_cpu() || (!options.scores.has_biases() && !options.row_ranges)) return {};
    const Tensor flags = empty(ctx, {2}, DType::i32);
    if (!ctx.is_planning()) fill(ctx, flags, 0);
    return flags;
}

// These functions run in dry runs, too: the devices' functions allocate their scratch memory, which a plan
// must count, and return before they access elements.
void compute_forward(const Context& ctx, const ResolvedOptions& options, const Saved& saved) {
    if (ctx.device().is_cuda()) return cuda::forward(ctx, options, saved);
    switch (options.algorithm) {
        case Algorithm::flash2:
            return cpu::flash_forward(ctx, options, saved);
        case Algorithm::naive:
            return cpu::naive_forward(ctx, options, saved);
        case Algorithm::memory_efficient:
            return cpu::memory_efficient_forward(ctx, options, saved);
        case Algorithm::flash1:
            return cpu::flash1_forward(ctx, options, saved);
    }
    throw Error("attention: unknown algorithm");
}

void compute_backward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                      const OutputGradients& d_out, const Gradients& into) {
    if (ctx.device().is_cuda()) return cuda::backward(ctx, options, saved, d_out, into);
    switch (options.algorithm) {
        case Algorithm::flash2:
            return cpu::flash_backward(ctx, options, saved, d_out, into);
        case Algorithm::naive:
            return cpu::naive_backward(ctx, options, saved, d_out, into);
        case Algorithm::memory_efficient:
            return cpu::memory_efficient_backward(ctx, options, saved, d_out, into);
        case Algorithm::flash1:
            return cpu::flash1_backward(ctx, options, saved, d_out, into);
    }
    throw Error("attention: unknown algorithm");
}

std::vector<FlashPlan> plans_of(const Context& ctx, Pass pass, const Options& options, const Saved& saved) {
    refuse_unavailable_options(ctx.device(), options);
    check_inputs(options, saved.q, saved.k, saved.v);
    const PackedSequences packed = resolve_packed(options, saved.q);
    const Saved batched = saved_with_batch_axis(saved);
    return cuda::pass_plans(ctx, pass, resolve(options, packed, batched.q, batched.k), batched);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, Algorithm algorithm) {
    return out << name_of(algorithm);
}

Algorithm algorithm_named(std::string_view text, std::string_view setting) {
    return text == "flash" ? Algorithm::flash2 : enum_named<Algorithm>(text, setting);
}

void forward(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Options& options,
             Saved& saved, const Tensor& o, const Tensor& max_logits) {
    refuse_unavailable_options(ctx.device(), options);
    check_inputs(options, q, k, v);
    check_output("o", o, output_shape(q, v), q.dtype());
    if (max_logits.defined()) {
        check_per_head("max_logits", max_logits, with_batch_axis(q, 4));
        check_distinct_elements("attention", {"max_logits", max_logits});
    }
    for (const Operand& output : {Operand{"o", o}, {"max_logits", max_logits}}) {
        check_sharing(ctx, "attention", output, {{"q", q}, {"k", k}, {"v", v}});
        check_options_apart(ctx, output, options);
    }
    check_sharing(ctx, "attention", {"max_logits", max_logits}, {{"o", o}});
    const PackedSequences packed = resolve_packed(options, q);
    saved = {.q = q, .k = k, .v = v, .o = o, .lse = empty(ctx, lse_shape(q), accumulator_of(q.dtype()))};
    if (keeps_remainder(ctx, options)) saved.lse_remainder = empty_like(ctx, saved.lse);
    if (options.algorithm == Algorithm::flash1) {
        saved.row_max = empty_like(ctx, saved.lse);
        saved.row_sum = empty_like(ctx, saved.lse);
    }
    const Saved batched = saved_with_batch_axis(saved);
    ResolvedOptions resolved = resolve(options, packed, batched.q, batched.k);
    resolved.flags = device_flags(ctx, resolved);
    const SeenForward seen(ctx, resolved, batched);
    seen.load(ctx);
    compute_forward(ctx, seen.options(), seen.saved());
    if (resolved.flags.defined()) cuda::repair_forward(ctx, seen.options(), seen.saved());
    if (ctx.device().is_cpu() && cpu::may_spread(ctx, seen.options(), {batched.o}))
        compute_forward(ctx, seen.options(),
                        cpu::without_hidden(ctx, seen.options(), {seen.saved(), {}}).saved);
    if (max_logits.defined())
        (ctx.device().is_cpu() ? cpu::max_logits : cuda::max_logits)(ctx, resolved, batched.q, batched.k,
                                                                     max_logits);
}

Tensor forward(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Options& options,
               Saved& saved) {
    refuse_unavailable_options(ctx.device(), options);
    check_inputs(options, q, k, v);
    const Tensor o = empty(ctx, output_shape(q, v), q.dtype());
    forward(ctx, q, k, v, options, saved, o);
    return o;
}

bool supports(Device device, DType dtype) {
    return is_floating(dtype) && (device.is_cpu() || dtype != DType::f16 || has_float16_kernels);
}

std::string explain_forward(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Options& options) {
    refuse_unavailable_options(ctx.device(), options);
    check_inputs(options, q, k, v);
    const bool on_gpu = ctx.device().is_cuda();
    if (!on_gpu && options.algorithm != Algorithm::flash2)
        return concat(options.algorithm, ": one set of kernels");
    const PackedSequences packed = resolve_packed(options, q);
    const Tensor q_batch = with_batch_axis(q, 4), k_batch = with_batch_of(q, k),
                 v_batch = with_batch_of(q, v);
    const auto explain = on_gpu ? cuda::explain : cpu::explain_flash_forward;
    const ResolvedOptions resolved = resolve(options, packed, q_batch, k_batch);
    std::string text = explain(ctx, resolved, q_batch, k_batch, v_batch);
    if (!resolved.row_ranges) return text;
    text += ", with row ranges";
    if (on_gpu || ctx.is_planning()) return text;  // the ranges are not read
    const VisibleBlocks blocks = visible_blocks(resolved, q_batch);
    return concat(text, ": ", blocks.visible, " of ", blocks.all,
                  " blocks of 128 rows x 128 keys have a visible pair");
}

std::vector<FlashPlan> forward_plans(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Options& options) {
    return plans_of(ctx, Pass::forward, options, {.q = q, .k = k, .v = v, .o = {}, .lse = {}});
}
std::vector<FlashPlan> backward_plans(const Context& ctx, const Options& options, const Saved& saved) {
    return plans_of(ctx, Pass::backward, options, saved);
}
const char* why_no_tile_candidates() {
    return GRADTILE_HAVE_CUDA && cuda::has_tile_candidates()
               ? nullptr
               : "this build times no other tiles; a build with -DGRADTILE_TUNE=ON for sm_90a does";
}

void backward(const Context& ctx, const Tensor& d_o, const Options& options, const Saved& saved,
              const Gradients& into, const Tensor& d_lse) {
    const Tensor &q = saved.q, &k = saved.k, &v = saved.v, &o = saved.o, &lse = saved.lse;
    refuse_unavailable_options(ctx.device(), options);
    check_inputs(options, q, k, v);
    check_like("saved o", o, output_shape(q, v), q.dtype());
    check_like("saved lse", lse, lse_shape(q), accumulator_of(q.dtype()));
    check_like("d_o", d_o, o.shape(), o.dtype());
    if (d_lse.defined()) check_like("d_lse", d_lse, lse.shape(), lse.dtype());
    check_output("gradient of q", into.q, q.shape(), q.dtype());
    check_output("gradient of k", into.k, k.shape(), k.dtype());
    check_output("gradient of v", into.v, v.shape(), v.dtype());
    for (const auto& [name, x] : {std::pair{"saved lse_remainder", &saved.lse_remainder},
                                  {"saved row_max", &saved.row_max},
                                  {"saved row_sum", &saved.row_sum}})
        if (x->defined() || (options.algorithm == Algorithm::flash1 && x != &saved.lse_remainder))
            check_like(name, *x, lse.shape(), lse.dtype());
    const PackedSequences packed = resolve_packed(options, q);
    const Saved batched = saved_with_batch_axis(saved);
    check_option_gradients(options, into, batched.q);
    check_gradient_sharing(ctx, d_o, options, saved, into, d_lse);
    ResolvedOptions resolved = resolve(options, packed, batched.q, batched.k);
    resolved.flags = device_flags(ctx, resolved);
    static_assert(max_biases == 2);
    const Tensor d_q = with_batch_axis(into.q, 4);
    const KeyGradient d_k(ctx, with_batch_axis(into.k, 4), d_q.size(0)),
        d_v(ctx, with_batch_axis(into.v, 4), d_q.size(0));
    const SeenBackward seen(ctx, resolved, batched, {with_batch_axis(d_o, 4), with_batch_axis(d_lse, 3)},
                            {d_q,
                             d_k.batch_gradients(),
                             d_v.batch_gradients(),
                             {with_bias_axes(into.biases[0]), with_bias_axes(into.biases[1])},
                             into.sink});
    seen.load(ctx);
    compute_backward(ctx, seen.options(), seen.saved(), seen.d_out(), seen.into());
    if (resolved.flags.defined())
        cuda::repair_backward(ctx, seen.options(), seen.saved(), seen.d_out(), seen.into());
    if (ctx.device().is_cpu() && cpu::may_spread(ctx, seen.options(), {q, d_o, into.q})) {
        const cpu::Inputs inputs = cpu::without_hidden(ctx, seen.options(), {seen.saved(), seen.d_out()});
        compute_backward(ctx, seen.options(), inputs.saved, inputs.d_out, seen.into());
    }
    seen.store(ctx);
    for (const KeyGradient* gradient : {&d_k, &d_v}) gradient->store(ctx);
}

Gradients backward(const Context& ctx, const Tensor& d_o, const Options& options, const Saved& saved,
                   const Tensor& d_lse) {
    Gradients gradients{.q = empty(ctx, saved.q.shape(), saved.q.dtype()),
                        .k = empty(ctx, saved.k.shape(), saved.k.dtype()),
                        .v = empty(ctx, saved.v.shape(), saved.v.dtype())};
    for (std::size_t n = 0; n < max_biases; ++n)
        if (options.biases[n].defined()) gradients.biases[n] = empty_broadcast_like(ctx, options.biases[n]);
    if (options.sink.defined()) gradients.sink = empty(ctx, options.sink.shape(), DType::f32);
    backward(ctx, d_o, options, saved, gradients, d_lse);
    return gradients;
}

}  // namespace gradtile::attention
