// Checks the accuracy of all layers except attention in the training dtypes, against the same layers in
// float64, which finite differences validate. The inputs are exact in every dtype, so a result's error is the
// rounding when it is stored plus the float32 roundings in its computation.
#include <cmath>
#include <functional>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/activation.h>
#include <gradtile/layers/cross_entropy_head.h>
#include <gradtile/layers/embedding.h>
#include <gradtile/layers/linear.h>
#include <gradtile/layers/norm.h>
#include <gradtile/layers/rope.h>
#include <gradtile/tools/gradcheck/gradcheck_accuracy.h>
#include <gradtile/tools/gradcheck/gradcheck_operators.h>

namespace gradtile::cli {
namespace {

using attention::accuracy::Finding;

constexpr double float32_roundoff = 0x1p-24;

double storage_roundoff(DType dtype) {
    return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : float32_roundoff;
}

/// Random numbers that are exact in every dtype.
Tensor numbers(const Context& ctx, const Shape& shape, DType dtype, std::uint64_t seed) {
    return cast(ctx, randn(ctx, shape, DType::bf16, Seed{seed}), dtype);
}

void fill_parameters(const Context& ctx, ParameterStore& store, DType dtype) {
    store.allocate(ctx, dtype);
    if (store.flat_elements() > 0)
        copy(ctx, store.values(), numbers(ctx, store.values().shape(), DType::bf16, 11));
}

struct Pass {
    std::vector<double> y, dx, gradients;
};

/// Error bound for an array: `roundings` float32 roundings of the largest element, plus one rounding of each
/// element when it is stored.
struct ErrorBound {
    const char* name;
    double roundings;
    double storage;
    std::int64_t columns;
    /// Whether errors in different rows are independent, so that their bias vanishes. An elementwise function
    /// has the same error wherever the same 16-bit number occurs, and there are few such numbers.
    bool errors_independent = true;
};

/// Adds findings for the largest error, the root mean square error (roundings are uniform within their bound,
/// hence the factor 1/sqrt(3)) and the bias: each row's errors are projected onto the expected values, and
/// the projections are summed; see attention::accuracy::bias().
void compare(std::vector<Finding>& findings, const std::vector<double>& values,
             const std::vector<double>& expected, const ErrorBound& bound) {
    if (expected.empty()) return;
    check(values.size() == expected.size(), bound.name, ": ", values.size(), " elements instead of ",
          expected.size());
    double largest = 0;
    for (const double e : expected) largest = std::max(largest, std::abs(e));
    const double arithmetic = bound.roundings * float32_roundoff * largest;
    Finding worst{.what = concat(bound.name, ": largest error")};
    std::vector<double> errors(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
        errors[i] = std::abs(values[i] - expected[i]);
        const Finding here{.what = worst.what,
                           .error = errors[i],
                           .bound = bound.storage * std::abs(expected[i]) + arithmetic,
                           .element = static_cast<std::int64_t>(i),
                           .value = values[i],
                           .expected = expected[i]};
        if (!(here.ratio() <= worst.ratio()) || i == 0) worst = here;
    }
    findings.push_back(worst);
    using attention::accuracy::root_mean_square;
    findings.push_back({.what = concat(bound.name, ": root mean square error"),
                        .error = root_mean_square(errors),
                        .bound = bound.storage / std::sqrt(3.0) * root_mean_square(expected) + arithmetic});
    if (!bound.errors_independent) return;
    findings.push_back(attention::accuracy::bias(concat(bound.name, ": bias"), values, expected, expected,
                                                 std::vector<double>(values.size(), arithmetic),
                                                 bound.columns));
}

struct LayerCheck {
    std::string op;
    std::string option;
    Shape shape;        ///< the shape of x
    double operations;  ///< float32 roundings per y element; dx has twice as many
    DType dtype;
    const AccuracyReport& report;
    bool elementwise = false;  ///< each y element depends on one x element only
};

template <class Make>
Pass run_pass(const Context& ctx, Make& make, const Shape& shape, DType dtype) {
    ParameterStore store;
    const auto layer = make(store);
    fill_parameters(ctx, store, dtype);
    typename std::remove_const_t<decltype(layer)>::Saved saved;
    const Tensor y = layer.forward(ctx, numbers(ctx, shape, dtype, 1), saved);
    Pass pass{.y = to_host(ctx, y), .dx = {}, .gradients = {}};
    pass.dx = to_host(ctx, layer.backward(ctx, numbers(ctx, y.shape(), dtype, 2), std::as_const(saved)));
    if (store.flat_elements() > 0) pass.gradients = to_host(ctx, store.gradients());
    return pass;
}

void report_pass(const Context& ctx, const LayerCheck& check, const Pass& pass, const Pass& exact) {
    std::vector<Finding> findings;
    const double storage = storage_roundoff(check.dtype);
    const std::int64_t rows = check.shape.elements() / check.shape[-1];
    const auto columns = static_cast<std::int64_t>(pass.y.size()) / rows;
    compare(findings, pass.y, exact.y, {"y", check.operations, storage, columns, !check.elementwise});
    compare(findings, pass.dx, exact.dx, {"dx", 2 * check.operations, storage, check.shape[-1]});
    compare(findings, pass.gradients, exact.gradients,
            {"parameter gradients", check.operations + static_cast<double>(rows), float32_roundoff, 1});
    check.report({.op = check.op,
                  .dtype = check.dtype,
                  .kernel = ctx.device().is_cpu() ? "cpu" : "cuda",
                  .option = check.option,
                  .worst = worst_of(findings)});
}

template <class Make>
void check_layer(const Context& ctx, Make make, const LayerCheck& check) {
    report_pass(ctx, check, run_pass(ctx, make, check.shape, check.dtype),
                run_pass(Context(Device::cpu()), make, check.shape, DType::f64));
}

/// A y element sums over the weight's input features, a dx element over its output features.
void check_linear(const Context& ctx, DType dtype, const AccuracyReport& report) {
    for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{7, 40}, {64, 96}, {300, 130}})
        for (const bool bias : {false, true})
            check_layer(ctx,
                        [&, in = in, out = out](ParameterStore& store) {
                            return Linear(store, "linear", in, out, {.bias = bias});
                        },
                        {"linear",
                         concat(in, " to ", out, bias ? ", bias" : ""),
                         {3, 57, in},
                         static_cast<double>(std::max(in, out) + 1),
                         dtype,
                         report});
}

/// With an adapter there are also sums over the rank. Three intermediate results are rounded to `dtype`: A x
/// or dy B, the product with the weight, and in backward A x once more.
void check_lora(const Context& ctx, DType dtype, const AccuracyReport& report) {
    const double intermediate = 3 * storage_roundoff(dtype) / float32_roundoff;
    for (const std::int64_t rank : {1, 8, 20})
        check_layer(ctx,
                    [&](ParameterStore& store) {
                        Linear linear(store, "linear", 64, 96);
                        linear.add_adapter(store, {.rank = rank, .alpha = 16.0});
                        return linear;
                    },
                    {"lora",
                     concat("64 to 96, rank ", rank),
                     {3, 57, 64},
                     static_cast<double>(96 + rank + 1) + intermediate,
                     dtype,
                     report});
}

/// Counts the roundings in two sums over the width (32 lanes, reduced in 5 steps) and in about ten other
/// operations.
double norm_operations(std::int64_t width) {
    return (static_cast<double>(width) / 32 + 5) * 2 + 10;
}
void check_layer_norm(const Context& ctx, DType dtype, const AccuracyReport& report) {
    for (const std::int64_t width : {37, 96, 768})
        for (const bool bias : {false, true})
            check_layer(ctx, [&](ParameterStore& store) { return LayerNorm(store, "norm", width, bias); },
                        {"layer-norm",
                         concat("width ", width, bias ? ", bias" : ""),
                         {3, 57, width},
                         norm_operations(width),
                         dtype,
                         report});
}
void check_rms_norm(const Context& ctx, DType dtype, const AccuracyReport& report) {
    for (const std::int64_t width : {37, 96, 768})
        check_layer(
            ctx, [&](ParameterStore& store) { return RMSNorm(store, "norm", width); },
            {"rms-norm", concat("width ", width), {3, 57, width}, norm_operations(width), dtype, report});
}

void check_activation(const ActivationTraits& traits, const Context& ctx, DType dtype,
                      const AccuracyReport& report) {
    for (const std::int64_t width : {traits.gated ? 74 : 37, 160})
        check_layer(ctx, [&](ParameterStore&) { return ActivationLayer{traits.activation}; },
                    {std::string(traits.name),
                     concat("width ", width),
                     {3, 57, width},
                     static_cast<double>(traits.roundings),
                     dtype,
                     report,
                     !traits.gated});
}
void check_positions(const Context& ctx, DType dtype, const AccuracyReport& report) {
    check_layer(ctx, [](ParameterStore& store) { return PositionEmbedding(store, "positions", 57, 37); },
                {"positions", "width 37", {3, 57, 37}, 1, dtype, report});
}

/// Rope with a layer's interface. Rotates a copy of its input.
struct RopeLayer {
    struct Saved {};
    Rope rope;
    Tensor forward(const Context& ctx, const Tensor& x, Saved&) const { return rotated(ctx, x, false); }
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved&) const {
        return rotated(ctx, dy, true);
    }
    Tensor rotated(const Context& ctx, const Tensor& x, bool inverse) const {
        const Tensor y = cast(ctx, x, x.dtype());
        const Tensor heads = y.reshape({x.size(0), x.size(1), x.size(2) / rope.head_dim(), rope.head_dim()});
        inverse ? rope.backward(ctx, heads) : rope.forward(ctx, heads);
        return y;
    }
};
void check_rope(const Context& ctx, DType dtype, const AccuracyReport& report) {
    for (const std::int64_t head_dim : {10, 64})
        check_layer(ctx, [&](ParameterStore&) { return RopeLayer{Rope(head_dim, 57)}; },
                    {"rope", concat("head dim ", head_dim), {3, 57, 3 * head_dim}, 4, dtype, report});
}

/// Forward copies rows (no error); backward sums over all positions where a token occurs.
void check_embedding(const Context& ctx, DType dtype, const AccuracyReport& report) {
    const std::int64_t count = 171, width = 37;
    const std::int32_t vocabulary = 23;
    const auto run_pass_on = [&](const Context& c, DType type) {
        ParameterStore store;
        const Embedding embedding(store, "embedding", vocabulary, width);
        fill_parameters(c, store, type);
        Embedding::Saved saved;
        const Tensor y =
            embedding.forward(c, from_host(c, token_pattern(count, vocabulary, 5), {count}), saved);
        embedding.backward(c, numbers(c, {count, width}, type, 2), saved);
        return Pass{.y = to_host(c, y), .dx = {}, .gradients = to_host(c, store.gradients())};
    };
    const double uses = std::ceil(static_cast<double>(count) / vocabulary);
    const Pass pass = run_pass_on(ctx, dtype), exact = run_pass_on(Context(Device::cpu()), DType::f64);
    std::vector<Finding> findings;
    compare(findings, pass.y, exact.y, {"y", 0, 0, width});
    compare(findings, pass.gradients, exact.gradients,
            {"parameter gradients", uses, float32_roundoff, width});
    report({.op = "embedding",
            .dtype = dtype,
            .kernel = ctx.device().is_cpu() ? "cpu" : "cuda",
            .option = concat(count, " tokens of ", vocabulary),
            .worst = worst_of(findings)});
}

/// Logits are sums over the width, with addends of order 1; their absolute error is p's relative error. Sums
/// over rows and vocabulary add one rounding per addend. In 16 bits d_logits and dx are rounded once each,
/// and on a GPU the logits too.
void check_cross_entropy(const Context& ctx, DType dtype, const AccuracyReport& report) {
    const std::int64_t rows = 100, width = 24;
    const std::int32_t vocabulary = 130;
    struct Losses {
        std::vector<double> loss, dx, dw;
    };
    const auto run_pass_on = [&](const Context& c, DType type) {
        ParameterStore store;
        const CrossEntropyHead head(store, "head", vocabulary, width);
        fill_parameters(c, store, type);
        std::vector<std::int32_t> targets = token_pattern(rows, vocabulary, 7);
        targets[3] = -1;
        CrossEntropyHead::Saved saved;
        const Tensor loss =
            head.forward(c, numbers(c, {rows, width}, type, 1), from_host(c, targets, {rows}), saved);
        return Losses{to_host(c, loss), to_host(c, head.backward(c, saved)), to_host(c, head.weight.grad())};
    };
    const Losses pass = run_pass_on(ctx, dtype), exact = run_pass_on(Context(Device::cpu()), DType::f64);
    const double storage = is_16_bit(dtype) ? storage_roundoff(dtype) : 0;
    const double size_of_logits = 4 * std::sqrt(static_cast<double>(width));
    const double logits =
        (static_cast<double>(width) * float32_roundoff + (ctx.device().is_cpu() ? 0 : storage)) *
        size_of_logits;
    const double relative =
        2 * logits + static_cast<double>(rows + vocabulary) * float32_roundoff + 2 * storage;
    // Most d_logits are subnormal in float16, with an error below 2^-25 each; |x| and |w| are below 5.
    const double subnormal = dtype == DType::f16 ? 5 * 0x1p-25 : 0.0;
    std::vector<Finding> findings;
    const auto add = [&](const char* name, const std::vector<double>& values,
                         const std::vector<double>& expected, double absolute) {
        double largest = 0;
        for (const double e : expected) largest = std::max(largest, std::abs(e));
        const double bound = relative * largest + absolute;
        findings.push_back({.what = concat(name, ": largest error"),
                            .error = attention::accuracy::largest_difference(values, expected),
                            .bound = bound});
        // It is not checked that errors are as likely positive as negative: the targets' d_logits are nearly
        // equal in all rows and round the same way.
        using attention::accuracy::root_mean_square;
        std::vector<double> errors(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) errors[i] = values[i] - expected[i];
        findings.push_back({.what = concat(name, ": root mean square error"),
                            .error = root_mean_square(errors),
                            .bound = relative * root_mean_square(expected) + absolute});
    };
    add("loss", pass.loss, exact.loss, 2 * logits);
    add("dx", pass.dx, exact.dx, subnormal * static_cast<double>(vocabulary));
    add("parameter gradients", pass.dw, exact.dw, subnormal * static_cast<double>(rows));
    report({.op = "cross-entropy",
            .dtype = dtype,
            .kernel = ctx.device().is_cpu() ? "cpu" : "cuda",
            .option = concat(rows, " rows, vocabulary ", vocabulary),
            .worst = worst_of(findings)});
}

}  // namespace

std::vector<AccuracyCheck> layer_accuracy_checks() {
    std::vector<AccuracyCheck> checks{{"linear", check_linear},
                                      {"lora", check_lora},
                                      {"layer-norm", check_layer_norm},
                                      {"rms-norm", check_rms_norm},
                                      {"embedding", check_embedding},
                                      {"positions", check_positions},
                                      {"rope", check_rope},
                                      {"cross-entropy", check_cross_entropy}};
    for (const ActivationTraits& traits : activation_table)
        checks.push_back({std::string(traits.name), std::bind_front(check_activation, std::cref(traits))});
    return checks;
}

const std::vector<AccuracyCheck>& accuracy_checks() {
    static const std::vector<AccuracyCheck> checks = [] {
        std::vector<AccuracyCheck> all{{"attention", check_attention_accuracy}};
        for (AccuracyCheck& check : layer_accuracy_checks()) all.push_back(std::move(check));
        return all;
    }();
    return checks;
}

Finding worst_of(const std::vector<Finding>& findings) {
    Finding worst;
    bool first = true;
    for (const Finding& finding : findings) {
        if (!first && finding.ratio() <= worst.ratio()) continue;
        if (!first && std::isnan(worst.ratio())) continue;
        worst = finding;
        first = false;
    }
    return worst;
}

}  // namespace gradtile::cli
