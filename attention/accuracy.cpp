#include <gradtile/attention/accuracy.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <random>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::accuracy {
namespace {

using Vector = std::vector<double>;
constexpr double infinity = std::numeric_limits<double>::infinity();

std::size_t index(std::int64_t i) {
    return static_cast<std::size_t>(i);
}

/// The key for all problems with dropout. Its first sample is not 0, so that a kernel that ignores the first
/// sample fails.
const DropoutKey dropout_key = DropoutKey::from_step(/*run_seed=*/21, /*step=*/3, /*first_sample=*/5);

/// One attention output: its Result member and its columns per row.
struct Output {
    const char* name;
    Vector Result::*part;
    std::int64_t columns;
    bool is_forward;
};
std::vector<Output> outputs_of(const Problem& p) {
    return {{"O", &Result::o, p.d_v, true},           {"LSE", &Result::lse, 1, true},
            {"dQ", &Result::d_q, p.d_qk, false},      {"dK", &Result::d_k, p.d_qk, false},
            {"dV", &Result::d_v, p.d_v, false},       {"dBias 0", &Result::d_bias_0, 1, false},
            {"dBias 1", &Result::d_bias_1, 1, false}, {"dSink", &Result::d_sink, 1, false}};
}

/// |a - b|; 0 for equal numbers including infinities, infinity if either is NaN.
double difference(double a, double b) {
    if (a == b) return 0;
    const double d = std::abs(a - b);
    return std::isnan(d) ? infinity : d;
}

Vector differences(const Vector& a, const Vector& b) {
    check(a.size() == b.size(), "accuracy: cannot compare ", a.size(), " numbers with ", b.size());
    Vector result(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) result[i] = difference(a[i], b[i]);
    return result;
}

Tensor plus_offset(const Context& ctx, const Tensor& x, double offset) {
    Vector numbers = to_host(ctx, x);
    for (double& e : numbers) e += offset;
    return from_host(ctx, numbers, x.shape(), x.dtype());
}

}  // namespace

Vector numbers_of(const Context& ctx, const Tensor& x) {
    return x.defined() ? to_host(ctx, x) : Vector();
}

Options Problem::options(Algorithm algorithm) const {
    DropoutKey key = dropout_key;
    key.first_sample += first_sample;
    return {.algorithm = algorithm,
            .scale = scale,
            .causal = causal,
            .window = window,
            .top_left = top_left,
            .softcap = softcap,
            .batch_divisor = batch_divisor,
            .dropout_p = dropout_p,
            .dropout_key = key};
}
double Problem::scale_or_default() const {
    return scale.value_or(1.0 / std::sqrt(static_cast<double>(d_qk)));
}

std::ostream& operator<<(std::ostream& out, const Problem& p) {
    out << p.queries << " x " << p.keys << ", head dims " << p.d_qk << " and " << p.d_v << ", batch "
        << p.batch << ", heads " << p.heads << " over " << p.key_heads << (p.causal ? ", causal" : "")
        << (p.top_left ? ", top left" : "");
    if (p.window.left >= 0 || p.window.right >= 0)
        out << ", window {" << p.window.left << ", " << p.window.right << '}';
    if (p.scale) out << ", scale " << *p.scale;
    if (p.softcap != 0) out << ", softcap " << p.softcap;
    if (p.alibi) out << ", ALiBi";
    if (p.sink) out << ", sink";
    for (const Shape& bias : p.biases)
        if (bias.rank() > 0) out << ", bias " << bias;
    if (p.batch_divisor > 1) out << ", batch divisor " << p.batch_divisor;
    if (p.row_ranges.rank() > 0) out << ", row ranges " << p.row_ranges;
    if (p.dropout_p > 0) out << ", dropout " << p.dropout_p;
    if (p.d_lse) out << ", dLSE";
    return out;
}

std::vector<NamedProblem> score_option_problems(const Problem& base) {
    struct Option {
        const char* name;
        void (*set)(Problem&);
    };
    constexpr Option options[] = {
        {"softcap", [](Problem& p) { p.softcap = 1.5; }},
        {"alibi", [](Problem& p) { p.alibi = true; }},
        {"sink", [](Problem& p) { p.sink = true; }},
        {"bias",
         [](Problem& p) {
             p.biases = {Shape{p.batch, 1, 1, p.keys}, Shape{1, p.heads, p.queries, p.keys}};
         }},
        {"dropout", [](Problem& p) { p.dropout_p = 0.25; }},
        {"lse", [](Problem& p) { p.d_lse = true; }}};
    std::vector<NamedProblem> problems;
    NamedProblem all{"all-options", base};
    for (const Option& option : options) {
        option.set(problems.emplace_back(NamedProblem{option.name, base}).problem);
        option.set(all.problem);
    }
    problems.push_back(std::move(all));
    return problems;
}

std::vector<NamedProblem> row_range_problems(const Problem& base) {
    std::vector<NamedProblem> problems{{"row-ranges", base}, score_option_problems(base).back()};
    problems[0].problem.row_ranges = {1, 1};
    problems[1].problem.row_ranges = {base.batch, base.heads};
    problems[1].name = "row-ranges-and-all-options";
    return problems;
}

Inputs Inputs::to(const Context& ctx, DType dtype) const {
    Inputs converted = *this;
    for (Tensor* x : {&converted.q, &converted.k, &converted.v, &converted.d_o}) *x = cast(ctx, *x, dtype);
    if (d_lse.defined()) converted.d_lse = cast(ctx, d_lse, accumulator_of(dtype));
    return converted;
}

Options Inputs::with_tensors(Options options) const {
    options.biases = biases;
    options.alibi_slopes = alibi_slopes;
    options.sink = sink;
    options.row_ranges = row_ranges;
    return options;
}

Tensor random_row_ranges(const Context& ctx, const Shape& shape, std::int64_t rows) {
    std::mt19937_64 engine(19);
    // The standard library's distributions differ between libraries.
    const auto draw = [&](std::int64_t n) {
        return static_cast<std::int32_t>(engine() % static_cast<std::uint64_t>(n));
    };
    std::vector<std::int32_t> numbers;
    constexpr std::int32_t lowest = std::numeric_limits<std::int32_t>::min(), largest = -(lowest + 1);
    std::array<std::int32_t, 4> ranges{};
    std::int32_t left = 0, growth = 0;  // keys that still get these ranges
    for (std::int64_t key = 0; key < shape.elements() / 4; ++key, --left) {
        if (left == 0 || key % shape[2] == 0) {
            left = 1 + draw(90);
            growth = draw(2);
            for (std::int32_t& end : ranges) end = draw(rows + 10) - 5;
            const std::int32_t kind = draw(6);
            if (kind == 0) ranges = {lowest, largest, 0, 0};
            if (kind == 1) ranges = {5, 5, largest, lowest};
            if (kind == 2) ranges[2] = ranges[3];
            if (kind == 3) std::ranges::sort(ranges);
        }
        numbers.insert(numbers.end(), ranges.begin(), ranges.end());
        if (ranges[0] != lowest && ranges[2] != largest)
            for (std::int32_t& end : ranges) end += growth;
    }
    return from_host(ctx, numbers, shape);
}

Inputs random_inputs(const Context& ctx, const Problem& p, DType dtype) {
    Inputs in{.q = randn(ctx, {p.batch, p.queries, p.heads, p.d_qk}, dtype, Seed{11}),
              .k = randn(ctx, {p.batch, p.keys, p.key_heads, p.d_qk}, dtype, Seed{12}),
              .v = randn(ctx, {p.batch, p.keys, p.key_heads, p.d_v}, dtype, Seed{13}),
              .d_o = randn(ctx, {p.batch, p.queries, p.heads, p.d_v}, dtype, Seed{14})};
    for (std::size_t n = 0; n < max_biases; ++n)
        if (p.biases[n].rank() > 0) in.biases[n] = randn(ctx, p.biases[n], DType::f32, Seed{15 + n});
    if (p.alibi) {
        Vector slopes;  // the paper's slopes for a power-of-two head count
        for (std::int64_t h = 1; h <= p.heads; ++h)
            slopes.push_back(std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(p.heads)));
        in.alibi_slopes = from_host(ctx, slopes, {p.heads}, DType::f32);
    }
    if (p.sink) in.sink = randn(ctx, {p.heads}, DType::f32, Seed{17});
    if (p.row_ranges.rank() > 0)
        in.row_ranges = random_row_ranges(ctx, {p.row_ranges[0], p.row_ranges[1], p.keys, 4}, p.queries);
    if (p.d_lse) in.d_lse = randn(ctx, {p.batch, p.heads, p.queries}, accumulator_of(dtype), Seed{18});
    return in;
}

Inputs offset_inputs(const Context& ctx, const Problem& p, DType dtype, double offset) {
    Inputs in = random_inputs(ctx, p, dtype);
    in.k = plus_offset(ctx, in.k, offset);
    in.v = plus_offset(ctx, in.v, offset);
    return in;
}

Inputs sink_inputs(const Context& ctx, const Problem& p, DType dtype, std::int64_t sink, double height) {
    Inputs in = random_inputs(ctx, p, dtype);
    constexpr double noise = 0x1p-5;  // small, so that the other keys' scores are nearly equal
    Vector q = to_host(ctx, in.q), k = to_host(ctx, in.k);
    for (double& e : q) e = 1 + noise * e;
    const std::int64_t width = p.key_heads * p.d_qk;
    const double sink_element = height / (p.scale_or_default() * static_cast<double>(p.d_qk));
    for (std::size_t i = 0; i < k.size(); ++i)
        k[i] = static_cast<std::int64_t>(i) / width % p.keys == sink ? sink_element : noise * k[i];
    in.q = from_host(ctx, q, in.q.shape(), dtype);
    in.k = from_host(ctx, k, in.k.shape(), dtype);
    return in;
}

Result run(const Context& ctx, const Inputs& in, const Options& options) {
    const Options with_tensors = in.with_tensors(options);
    Saved saved;
    const Tensor o = forward(ctx, in.q, in.k, in.v, with_tensors, saved);
    const Gradients gradients = backward(ctx, in.d_o, with_tensors, saved, in.d_lse);
    return {.o = to_host(ctx, o),
            .lse = to_host(ctx, saved.lse),
            .d_q = to_host(ctx, gradients.q),
            .d_k = to_host(ctx, gradients.k),
            .d_v = to_host(ctx, gradients.v),
            .d_bias_0 = numbers_of(ctx, gradients.biases[0]),
            .d_bias_1 = numbers_of(ctx, gradients.biases[1]),
            .d_sink = numbers_of(ctx, gradients.sink)};
}

double Roundoff::sum_error(std::int64_t terms) const {
    const std::int64_t blocks = ceil_div(terms, terms_per_block);
    return arithmetic * static_cast<double>(std::min(terms, roundings_per_block) + blocks);
}

Roundoff roundoff_of(DType dtype, const Device& device) {
    const bool on_cpu = device.is_cpu();
    const double u = dtype == DType::f64 ? 0x1p-53 : 0x1p-24, row_numbers = on_cpu ? 0 : 3 * u;
    switch (dtype) {
        case DType::f64:
            return {u, u, 0, 0, 64, on_cpu ? 32 : 8, row_numbers};
        case DType::bf16:
            return {u, 0x1p-8, 0x1p-8, on_cpu ? 3e-6 : 0, 1024, on_cpu ? 32 : 8, row_numbers};
        case DType::f16:
            return {u, 0x1p-11, 0x1p-11, 0, 1024, on_cpu ? 32 : 8, row_numbers};
        case DType::f32:
            return {u, u, 0, 0, on_cpu ? 80 : 128, on_cpu ? 64 : 16, row_numbers};
        case DType::i32:
            break;
    }
    throw Error(concat("attention accuracy: ", dtype, " is not floating-point"));
}

Factors factors_of(DType dtype) {
    return is_16_bit(dtype) ? Factors{.forward = 1, .gradients = 1} : Factors{.forward = 2, .gradients = 3};
}
Factors average_factors_of(DType dtype) {
    return is_16_bit(dtype) ? Factors{.forward = 0, .gradients = 0} : factors_of(dtype);
}

std::ostream& operator<<(std::ostream& out, const Finding& finding) {
    out << finding.what << ": " << finding.error << ", bound " << finding.bound;
    if (finding.element >= 0)
        out << ", at element " << finding.element << ": " << finding.value << ", float64 "
            << finding.expected;
    return out;
}

std::vector<Finding> largest_errors(const Result& naive, const Result& result, const Reference& reference,
                                    const Factors& factors) {
    std::vector<Finding> findings;
    for (const Output& output : outputs_of({})) {
        const Vector &values = result.*output.part, &expected = reference.value.*output.part,
                     &floor = reference.floor.*output.part;
        check(values.size() == expected.size(), "accuracy: ", output.name, " has ", values.size(),
              " elements instead of ", expected.size());
        const double naive_error = largest_difference(naive.*output.part, expected) *
                                   (output.is_forward ? factors.forward : factors.gradients);
        Finding worst{.what = concat(output.name, ": largest error")};
        double worst_ratio = -1;
        for (std::size_t i = 0; i < values.size(); ++i) {
            const double error = difference(values[i], expected[i]), bound = naive_error + floor[i];
            const double ratio = error == 0 ? 0 : error / bound;
            if (ratio <= worst_ratio) continue;
            worst_ratio = ratio;
            worst.error = error;
            worst.bound = bound;
            worst.element = static_cast<std::int64_t>(i);
            worst.value = values[i];
            worst.expected = expected[i];
        }
        findings.push_back(std::move(worst));
    }
    return findings;
}

std::vector<Finding> root_mean_square_errors(const Result& naive, const Result& result,
                                             const Reference& reference, const Factors& factors) {
    std::vector<Finding> findings;
    for (const Output& output : outputs_of({})) {
        const Vector& expected = reference.value.*output.part;
        const double factor = output.is_forward ? factors.forward : factors.gradients;
        double bound = root_mean_square(reference.root_mean_square.*output.part);
        if (factor > 0) bound += factor * root_mean_square(differences(naive.*output.part, expected));
        findings.push_back({.what = concat(output.name, ": root mean square error"),
                            .error = root_mean_square(differences(result.*output.part, expected)),
                            .bound = bound});
    }
    return findings;
}

std::vector<Finding> biases(const Problem& problem, const Result& result, const Reference& reference) {
    std::vector<Finding> findings;
    for (const Output& output : outputs_of(problem)) {
        const Vector &values = result.*output.part, &expected = reference.value.*output.part;
        const bool is_lse = output.part == &Result::lse;
        findings.push_back(bias(concat(output.name, ": bias"), values, expected,
                                is_lse ? Vector(values.size(), 1.0) : expected,
                                reference.systematic.*output.part, output.columns));
    }
    findings.push_back(bias("dQ: bias along D", result.d_q, reference.value.d_q, reference.d_q_by_d,
                            reference.systematic.d_q, problem.d_qk));
    return findings;
}

double root_mean_square(const Vector& x) {
    double sum = 0;
    for (const double e : x) sum += e * e;
    return x.empty() ? 0 : std::sqrt(sum / static_cast<double>(x.size()));
}

Finding bias(std::string what, const Vector& values, const Vector& expected, const Vector& direction,
             const Vector& systematic, std::int64_t columns) {
    double total = 0, squares = 0, allowed = 0;
    for (std::size_t first = 0; first < values.size(); first += index(columns)) {
        double projection = 0;
        for (std::size_t i = first; i < first + index(columns); ++i) {
            if (values[i] == expected[i]) continue;  // also true for equal infinities
            projection += (values[i] - expected[i]) * direction[i];
            allowed += systematic[i] * std::abs(direction[i]);
        }
        total += projection;
        squares += projection * projection;
    }
    // A normally distributed number deviates from its mean by more than this many standard deviations once in
    // two million cases.
    constexpr double deviations = 5;
    const double error = std::isnan(total) ? infinity : std::abs(total);
    return {.what = std::move(what), .error = error, .bound = deviations * std::sqrt(squares) + allowed};
}

double largest_difference(const Vector& a, const Vector& b) {
    double largest = a.size() == b.size() ? 0 : infinity;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
        largest = std::max(largest, difference(a[i], b[i]));
    return largest;
}

}  // namespace gradtile::attention::accuracy
