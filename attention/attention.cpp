#include <gradtile/attention/attention.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>

#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention {
namespace {

constexpr std::int64_t max_head_dim = 256;

/// Calls flash() or naive(). Throws Error for the algorithms that this version does not implement.
template <class Flash, class Naive>
void with_algorithm(Algorithm algorithm, Flash&& flash, Naive&& naive) {
    switch (algorithm) {
        case Algorithm::flash:
            return flash();
        case Algorithm::naive:
            return naive();
        case Algorithm::memory_efficient:
        case Algorithm::flash1:
            break;
    }
    throw Error(concat("attention: algorithm ", algorithm, " is not available; choose flash or naive"));
}

/// Throws an Error with the option's name if an option is set that this version does not implement. Ignoring
/// it would train a different model than the caller asked for.
void refuse_unavailable(const Options& options) {
    const auto refuse_if = [](bool is_set, const char* name) {
        check(!is_set, "attention: option ", name, " is not available; leave it at its default");
    };
    refuse_if(options.biases[0].defined() || options.biases[1].defined(), "biases");
    refuse_if(options.batch_divisor != 1, "batch_divisor");
    refuse_if(options.alibi_slopes.defined(), "alibi_slopes");
    refuse_if(options.softcap != 0, "softcap");
    refuse_if(options.sink.defined(), "sink");
    refuse_if(options.dropout_p != 0, "dropout_p");
    refuse_if(options.cumulative_q.defined(), "cumulative_q");
    refuse_if(options.cumulative_k.defined(), "cumulative_k");
    with_algorithm(
        options.algorithm, [] {}, [] {});
}

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
    check(q.rank() == 4 && k.rank() == 4 && v.rank() == 4,
          "attention: q, k, v must be [batch, length, heads, head_dim]: q ", q, ", k ", k, ", v ", v);
    check(is_floating(q.dtype()) && k.dtype() == q.dtype() && v.dtype() == q.dtype(),
          "attention: q, k, v must share one floating dtype: q ", q, ", k ", k, ", v ", v);
    check(k.size(0) == q.size(0) && v.size(0) == q.size(0), "attention: batch sizes differ: q ", q, ", k ", k,
          ", v ", v);
    check(v.size(1) == k.size(1) && v.size(2) == k.size(2),
          "attention: k and v must agree in length and heads: k ", k, ", v ", v);
    const std::int64_t query_heads = q.size(2), key_heads = k.size(2);
    check(key_heads > 0 ? query_heads > 0 && query_heads % key_heads == 0 : query_heads == 0,
          "attention: ", query_heads, " query heads are not a multiple of ", key_heads, " key/value heads");
    check(k.size(3) == q.size(3), "attention: head_dim of q is ", q.size(3), ", of k ", k.size(3));
    for (const std::int64_t d : {q.size(3), v.size(3)}) {
        check(d >= 1 && d <= max_head_dim, "attention: head_dim ", d, " is not in 1..", max_head_dim);
        check(!is_16_bit(q.dtype()) || d % 8 == 0, "attention: head_dim ", d,
              " is not a multiple of 8, which ", q.dtype(), " needs");
    }
}

Shape output_shape(const Tensor& q, const Tensor& v) {
    return {q.size(0), q.size(1), q.size(2), v.size(3)};
}

void check_like(const char* name, const Tensor& x, const Shape& shape, DType dtype) {
    check(x.defined() && x.shape() == shape && x.dtype() == dtype, "attention: ", name, " is ", x,
          ", expected ", shape, ' ', dtype);
}

Resolved resolve(const Options& options, const Tensor& q, const Tensor& k) {
    Resolved resolved;
    resolved.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))));
    check(std::isfinite(resolved.scale), "attention: scale ", resolved.scale, " is not finite");
    // Kernels hold the scale in float32. A scale below float32's normal numbers acts as 0.
    if (q.dtype() != DType::f64 && std::abs(resolved.scale) < std::numeric_limits<float>::min())
        resolved.scale = 0;
    resolved.deterministic = options.deterministic;
    check(options.window.left >= -1 && options.window.right >= -1, "attention: window {", options.window.left,
          ", ", options.window.right, "}; sides are -1 (unbounded) or at least 0");
    Mask& mask = resolved.mask;
    mask.queries = q.size(1);
    mask.keys = k.size(1);
    mask.offset = options.top_left ? 0 : mask.keys - mask.queries;
    // A side longer than both sequences sees max_side. Clamping it keeps sums of indices from overflowing.
    const std::int64_t max_side = mask.queries + mask.keys;
    mask.left = std::min(options.window.left, max_side);
    mask.right = options.causal ? 0 : std::min(options.window.right, max_side);
    return resolved;
}

/// Calls the device's function, also in a dry run: the function allocates its scratch memory, which a plan
/// must count, and returns before it touches memory.
template <class Cpu, class Cuda, class... Args>
void on_device_or_plan(const Context& ctx, Cpu&& cpu_function, Cuda&& cuda_function, const Args&... args) {
    if (ctx.device().is_cpu()) {
        cpu_function(ctx, args...);
    } else {
        cuda_function(ctx, args...);
    }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, Algorithm algorithm) {
    switch (algorithm) {
        case Algorithm::flash:
            return out << "flash";
        case Algorithm::naive:
            return out << "naive";
        case Algorithm::memory_efficient:
            return out << "memory_efficient";
        case Algorithm::flash1:
            return out << "flash1";
    }
    throw Error("attention: unknown algorithm");
}

void forward(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Options& options,
             Saved& saved, const Tensor& o) {
    refuse_unavailable(options);
    check_inputs(q, k, v);
    check_like("o", o, output_shape(q, v), q.dtype());
    const Resolved resolved = resolve(options, q, k);
    saved = {.q = q,
             .k = k,
             .v = v,
             .o = o,
             .lse = empty(ctx, {q.size(0), q.size(2), q.size(1)}, accumulator_of(q.dtype()))};
    with_algorithm(
        options.algorithm,
        [&] {
            on_device_or_plan(ctx, cpu::flash_forward, cuda::flash_forward, resolved, q, k, v, o, saved.lse);
        },
        [&] {
            on_device_or_plan(ctx, cpu::naive_forward, cuda::naive_forward, resolved, q, k, v, o, saved.lse);
        });
}

Tensor forward(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Options& options,
               Saved& saved) {
    refuse_unavailable(options);
    check_inputs(q, k, v);
    const Tensor o = empty(ctx, output_shape(q, v), q.dtype());
    forward(ctx, q, k, v, options, saved, o);
    return o;
}

void backward(const Context& ctx, const Tensor& d_o, const Options& options, const Saved& saved,
              const Gradients& into) {
    refuse_unavailable(options);
    const auto& [q, k, v, o, lse] = saved;
    check_inputs(q, k, v);
    check_like("saved o", o, output_shape(q, v), q.dtype());
    check_like("saved lse", lse, {q.size(0), q.size(2), q.size(1)}, accumulator_of(q.dtype()));
    check_like("d_o", d_o, o.shape(), o.dtype());
    check_like("gradient of q", into.q, q.shape(), q.dtype());
    check_like("gradient of k", into.k, k.shape(), k.dtype());
    check_like("gradient of v", into.v, v.shape(), v.dtype());
    const Resolved resolved = resolve(options, q, k);
    with_algorithm(
        options.algorithm,
        [&] {
            on_device_or_plan(ctx, cpu::flash_backward, cuda::flash_backward, resolved, saved, d_o, into);
        },
        [&] {
            on_device_or_plan(ctx, cpu::naive_backward, cuda::naive_backward, resolved, saved, d_o, into);
        });
}

Gradients backward(const Context& ctx, const Tensor& d_o, const Options& options, const Saved& saved) {
    const Gradients gradients{.q = empty(ctx, saved.q.shape(), saved.q.dtype()),
                              .k = empty(ctx, saved.k.shape(), saved.k.dtype()),
                              .v = empty(ctx, saved.v.shape(), saved.v.dtype())};
    backward(ctx, d_o, options, saved, gradients);
    return gradients;
}

}  // namespace gradtile::attention
