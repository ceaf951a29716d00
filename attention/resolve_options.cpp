#include <algorithm>
#include <cmath>
#include <limits>

#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/internal/checks.h>
#include <gradtile/attention/internal/kernel_views.h>

namespace gradtile::attention {
namespace {

/// A bias of packed sequences. Only kernels know the sequences' lengths, so a bias [sequences, Hq, Sq, Sk]
/// may have any Sq and Sk, which limit the lengths.
ScoreOptions::Bias resolve_packed_bias(const Tensor& bias, std::int64_t batch_divisor,
                                       PackedSequences& packed, const Tensor& q, std::int64_t keys) {
    const bool has_packed_keys = bias.rank() == 2, is_divided = bias.rank() == 4 && bias.size(0) != 1 &&
                                                                packed.count % batch_divisor == 0 &&
                                                                bias.size(0) == packed.count / batch_divisor;
    check((has_packed_keys || bias.rank() == 4) && bias.device() == q.device() &&
              (bias.dtype() == q.dtype() || bias.dtype() == DType::f32),
          "attention: bias is ", bias, ", expected rank 2 or 4 for packed sequences, ", q.dtype(),
          " or float32, on ", q.device());
    const Tensor x = with_bias_axes(bias);
    const auto fits = [&](int axis, std::int64_t length) {
        return x.size(axis) == 1 || x.size(axis) == length;
    };
    check(fits(1, q.size(2)) && (has_packed_keys ? fits(3, keys) : is_divided || fits(0, packed.count)),
          "attention: bias ", bias, " does not broadcast to ",
          has_packed_keys ? concat('[', q.size(2), ", ", keys, ']')
                          : concat('[', packed.count, ", ", q.size(2), ", rows, keys]"),
          " with batch_divisor ", batch_divisor);
    ScoreOptions::Bias resolved{.data = x.raw_data(), .dtype = x.dtype(), .has_packed_keys = has_packed_keys};
    for (int axis = 0; axis < 4; ++axis)
        resolved.strides[static_cast<std::size_t>(axis)] = x.size(axis) == 1 ? 0 : x.stride(axis);
    if (is_divided) resolved.batch_divisor = batch_divisor;
    if (has_packed_keys) return resolved;
    if (x.size(2) != 1) packed.max_queries = std::min(packed.max_queries, x.size(2));
    if (x.size(3) != 1) packed.max_keys = std::min(packed.max_keys, x.size(3));
    return resolved;
}

ScoreOptions::Bias resolve_bias(const Tensor& bias, std::int64_t batch_divisor, const Tensor& q,
                                std::int64_t keys) {
    const Shape scores{q.size(0), q.size(2), q.size(1), keys};
    check(bias.rank() == 4 && bias.device() == q.device() &&
              (bias.dtype() == q.dtype() || bias.dtype() == DType::f32),
          "attention: bias is ", bias, ", expected rank 4, ", q.dtype(), " or float32, on ", q.device());
    ScoreOptions::Bias resolved{.data = bias.raw_data(), .dtype = bias.dtype()};
    const bool is_divided =
        bias.size(0) != 1 && q.size(0) % batch_divisor == 0 && bias.size(0) == q.size(0) / batch_divisor;
    for (int axis = 0; axis < 4; ++axis) {
        check(bias.size(axis) == 1 || bias.size(axis) == scores[axis] || (axis == 0 && is_divided),
              "attention: bias ", bias, " does not broadcast to ", scores, " with batch_divisor ",
              batch_divisor);
        resolved.strides[static_cast<std::size_t>(axis)] = bias.size(axis) == 1 ? 0 : bias.stride(axis);
    }
    if (is_divided) resolved.batch_divisor = batch_divisor;
    return resolved;
}

/// q has a batch axis, whether or not the call is packed.
RowRanges resolve_row_ranges(const Tensor& ranges, bool is_packed, const Tensor& q, std::int64_t keys) {
    if (!ranges.defined()) return {};
    const Tensor x = is_packed && ranges.rank() == 3 ? with_batch_axis(ranges, 4) : ranges;
    const auto fits = [&](int axis, std::int64_t length) {
        return x.size(axis) == 1 || x.size(axis) == length;
    };
    const bool has_shape = x.rank() == 4 && ranges.rank() == (is_packed ? 3 : 4) && fits(0, q.size(0)) &&
                           fits(1, q.size(2)) && x.size(2) == keys && x.size(3) == 4;
    check(has_shape && x.dtype() == DType::i32 && x.device() == q.device(), "attention: row_ranges is ",
          ranges, ", expected int32 ", is_packed ? "[" : concat('[', q.size(0), " or 1, "), q.size(2),
          " or 1, ", keys, ", 4] on ", q.device());
    check(q.size(1) <= std::numeric_limits<std::int32_t>::max(), "attention: row_ranges is set for ",
          q.size(1), " rows; expected at most 2^31 - 1");
    const auto step = [&](int axis) { return x.size(axis) == 1 ? 0 : x.stride(axis); };
    constexpr std::int64_t elements = 4, bytes = 16;  // a key's numbers, which kernels read as one vector
    check(x.elements() == 0 ||
              (x.stride(3) == 1 && step(0) % elements == 0 && step(1) % elements == 0 &&
               step(2) % elements == 0 && reinterpret_cast<std::uintptr_t>(x.raw_data()) % bytes == 0),
          "attention: row_ranges has strides ", ranges.strides(),
          "; expected a contiguous last axis and each key's numbers aligned to ", bytes, " bytes");
    return {x.data<std::int32_t>(), step(0), step(1), step(2)};
}

/// `batches` is the batch, or the number of packed sequences.
void resolve_slopes(ScoreOptions& scores, const Tensor& slopes, const Tensor& q, std::int64_t batches) {
    if (!slopes.defined()) return;
    check((slopes.shape() == Shape{q.size(2)} || slopes.shape() == Shape{batches, q.size(2)}) &&
              slopes.dtype() == DType::f32 && slopes.device() == q.device(),
          "attention: alibi_slopes is ", slopes, ", expected ", Shape{q.size(2)}, " or ",
          Shape{batches, q.size(2)}, " float32 on ", q.device());
    scores.alibi_slopes = slopes.data<float>();
    scores.alibi_stride = slopes.stride(-1);
    if (slopes.rank() == 2) scores.alibi_batch_stride = slopes.stride(0);
}

/// Limits the lengths of `packed` by the biases.
ScoreOptions resolve_scores(const Options& options, PackedSequences& packed, const Tensor& q,
                            std::int64_t keys) {
    ScoreOptions scores;
    check(options.softcap == 0 || (options.softcap >= min_softcap && options.softcap <= max_softcap),
          "attention: softcap ", options.softcap, "; expected 0 (none) or ", min_softcap, " to ",
          max_softcap);
    scores.softcap = options.softcap;
    scores.dropout = dropout_draws("attention", options.dropout_p, options.dropout_key, q.device());
    check(options.batch_divisor >= 1, "attention: batch_divisor ", options.batch_divisor,
          "; expected at least 1");
    for (std::size_t n = 0; n < max_biases; ++n) {
        const Tensor& bias = options.biases[n];
        if (!bias.defined()) continue;
        scores.biases[n] = packed ? resolve_packed_bias(bias, options.batch_divisor, packed, q, keys)
                                  : resolve_bias(bias, options.batch_divisor, q, keys);
    }
    resolve_slopes(scores, options.alibi_slopes, q, packed ? packed.count : q.size(0));
    if (options.sink.defined()) {
        check_per_head("sink", options.sink, q);
        scores.sink = options.sink.data<float>();
        scores.sink_stride = options.sink.stride(0);
    }
    scores.set_summary();
    return scores;
}

}  // namespace

ResolvedOptions resolve(const Options& options, const PackedSequences& packed, const Tensor& q,
                        const Tensor& k) {
    ResolvedOptions resolved;
    resolved.algorithm = options.algorithm;
    resolved.kernels = options.kernels;
    resolved.packed = packed;
    resolved.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))));
    // Half of the largest number, because kernels multiply the scale by log2(e).
    const double max_scale = 0.5 * (q.dtype() == DType::f64 ? std::numeric_limits<double>::max()
                                                            : std::numeric_limits<float>::max());
    check(std::abs(resolved.scale) <= max_scale, "attention: scale ", resolved.scale,
          "; expected a number of magnitude at most ", max_scale);
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
    // A side of max_side sees every key. Clamping longer sides keeps index sums from overflowing.
    const std::int64_t max_side = mask.queries + mask.keys;
    mask.left = std::min(options.window.left, max_side);
    mask.right = options.causal ? 0 : std::min(options.window.right, max_side);
    resolved.row_ranges = resolve_row_ranges(options.row_ranges, static_cast<bool>(packed), q, mask.keys);
    resolved.scores = resolve_scores(options, resolved.packed, q, mask.keys);
    resolved.scores.offset = mask.offset;
    return resolved;
}

std::vector<OptionState> option_states(const Options& options) {
    // With a field more or less, this line does not compile. Each field then needs its line below.
    const auto& [algorithm, scale, causal, window, top_left, deterministic, kernels, row_ranges, softcap,
                 alibi_slopes, biases, batch_divisor, sink, dropout_p, dropout_key, cumulative_q,
                 cumulative_k] = options;
    const bool has_biases = std::ranges::any_of(biases, [](const Tensor& bias) { return bias.defined(); });
    const bool drops = dropout_p != 0 && dropout_key.training;
    return {{"algorithm", OptionKind::algorithm, algorithm != Options{}.algorithm},
            {"scale", OptionKind::scale, scale.has_value()},
            {"causal", OptionKind::window, causal},
            {"window", OptionKind::window, window.left >= 0 || window.right >= 0},
            {"top_left", OptionKind::alignment, top_left},
            {"deterministic", OptionKind::determinism, deterministic},
            {"kernels", OptionKind::kernels, kernels != KernelChoice{}},
            {"row_ranges", OptionKind::ranges, row_ranges.defined()},
            {"softcap", OptionKind::formula, softcap != 0},
            {"alibi_slopes", OptionKind::formula, alibi_slopes.defined()},
            {"biases", OptionKind::pairs, has_biases},
            {"batch_divisor", OptionKind::pairs, has_biases && batch_divisor != 1},
            {"sink", OptionKind::sink, sink.defined()},
            {"dropout_p", OptionKind::dropout, drops},
            {"dropout_key", OptionKind::dropout, drops},
            {"cumulative_q", OptionKind::packing, cumulative_q.defined()},
            {"cumulative_k", OptionKind::packing, cumulative_k.defined()}};
}

bool computes(Method method, OptionKind kind) {
    using enum OptionKind;
    const bool is_decode = method == Method::decode;
    switch (kind) {
        case determinism:  // decode()'s results are always equal to the bit
        case scale:
        case window:
        case formula:
        case sink:
            return true;
        case algorithm:
        case alignment:
        case pairs:
        case dropout:
            return !is_decode;
        case packing:
        case ranges:
            return method == Method::flash2_on_gpu || method == Method::dense_and_packed;
        case kernels:
            return method == Method::flash2_on_gpu;
    }
    throw Error("attention: unknown kind of option");
}

void refuse_unsupported(const char* op, Method method, const Options& options) {
    for (const OptionState& option : option_states(options)) {
        if (!option.is_set || computes(method, option.kind)) continue;
        if (method == Method::decode)
            throw Error(concat(op, ": ", option.name,
                               " is set; expected only windows, a scale, a sink and options of the scores' "
                               "formula"));
        throw Error(concat(op, ": ", option.name, " is set with algorithm ", options.algorithm,
                           option.kind == OptionKind::kernels ? "; expected it for flash2 on a GPU only"
                                                              : "; expected it for flash2 and naive only"));
    }
}

}  // namespace gradtile::attention
