// Accuracy of attention in the training dtypes: every kernel set on this machine, with every option.
#include <gradtile/attention/cpu/selection.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/gradcheck/gradcheck_accuracy.h>

namespace gradtile::cli {
namespace {

using namespace attention;
using namespace attention::accuracy;

/// One way to compute attention in a dtype.
struct Implementation {
    std::string name;
    std::function<Result(const Inputs&, const Options&)> run;
    bool is_naive = false;
    bool takes_row_ranges = true;
};

template <class T>
void add_cpu_kernels(const Context& ctx, std::vector<Implementation>& implementations) {
    for (const cpu::FlashKernels<T>* kernels : cpu::usable_kernels<T>())
        implementations.push_back({kernels->name, [&ctx, kernels](const Inputs& in, const Options& options) {
                                       const cpu::ForcedKernels<T> forced(kernels);
                                       return run(ctx, in, options);
                                   }});
}

std::vector<Implementation> make_implementations(const Context& ctx, DType dtype) {
    std::vector<Implementation> implementations;
    const auto add = [&](const std::string& name, Algorithm algorithm, bool deterministic = false) {
        implementations.push_back({name,
                                   [&ctx, algorithm, deterministic](const Inputs& in, Options options) {
                                       options.algorithm = algorithm;
                                       options.deterministic = deterministic;
                                       return run(ctx, in, options);
                                   },
                                   algorithm == Algorithm::naive,
                                   algorithm == Algorithm::flash2 || algorithm == Algorithm::naive});
    };
    if (ctx.device().is_cpu()) {
        if (dtype == DType::f32) add_cpu_kernels<float>(ctx, implementations);
        if (dtype == DType::bf16) add_cpu_kernels<bfloat16>(ctx, implementations);
        if (dtype == DType::f16) add_cpu_kernels<float16>(ctx, implementations);
    } else {
        add("cuda", Algorithm::flash2);
        add("cuda, deterministic", Algorithm::flash2, /*deterministic=*/true);
        add("cuda, naive", Algorithm::naive);
    }
    for (const Algorithm algorithm : {Algorithm::memory_efficient, Algorithm::flash1})
        add(concat(ctx.device().is_cpu() ? "" : "cuda, ", algorithm), algorithm);
    return implementations;
}

enum class Values { random, off_zero, first_key_dominates, last_key_dominates };

struct Option {
    std::string name;
    Problem problem;
    Values values = Values::random;
    bool strided = false;
};

Problem sized(std::int64_t queries, std::int64_t keys, std::int64_t head_dim, Problem problem = {}) {
    problem.queries = queries;
    problem.keys = keys;
    problem.d_qk = problem.d_v = head_dim;
    return problem;
}

/// Problems with head dims for every kernel, with lengths near every tile size, with each single option in
/// attention.h, and with all score options.
std::vector<Option> all_options() {
    std::vector<Option> options{
        {"no mask", sized(130, 150, 64, {.batch = 2, .heads = 2, .key_heads = 2})},
        {"causal", sized(150, 150, 64, {.causal = true, .batch = 2})},
        {"window", sized(300, 260, 32, {.window = {.left = 70, .right = 20}})},
        {"causal window", sized(300, 300, 32, {.causal = true, .window = {.left = 100}})},
        {"top left", sized(100, 150, 32, {.causal = true, .top_left = true})},
        {"heads share keys", sized(130, 150, 32, {.causal = true, .heads = 4, .key_heads = 2})},
        {"all heads share keys", sized(130, 150, 64, {.causal = true, .heads = 4, .key_heads = 1})},
        {"few queries", sized(3, 799, 64, {.causal = true, .heads = 2, .key_heads = 2})},
        {"rows without keys", sized(203, 113, 64, {.causal = true})},
        {"keys without rows", sized(100, 256, 64, {.window = {.right = 5}, .top_left = true})},
        {"one row, one key", sized(1, 1, 64, {.heads = 2, .key_heads = 2})},
        {"unequal head dims", {.queries = 65, .keys = 81, .d_qk = 7, .d_v = 33, .causal = true}},
        {"negative scale", sized(70, 90, 16, {.causal = true, .scale = -0.4})},
        {"scale 0", sized(70, 90, 16, {.causal = true, .scale = 0.0})},
        {"256 short heads", sized(40, 40, 64, {.causal = true, .batch = 16, .heads = 16, .key_heads = 16})},
        {"several blocks", sized(520, 1100, 64, {.causal = true})},
        {"strided tensors", sized(65, 81, 40, {.causal = true, .batch = 2, .heads = 4, .key_heads = 2}),
         Values::random, true},
        {"keys and values off zero", sized(150, 170, 64, {.batch = 2, .heads = 2, .key_heads = 2}),
         Values::off_zero},
        {"first of 8192 keys dominates", sized(8, 8192, 64), Values::first_key_dominates},
        {"last of 8192 keys dominates", sized(8, 8192, 64), Values::last_key_dominates}};
    for (NamedProblem& p : row_range_problems(sized(330, 350, 32, {.batch = 2, .heads = 4, .key_heads = 2})))
        options.push_back({p.name, std::move(p.problem)});
    for (const bool causal : {false, true})
        for (NamedProblem& p : score_option_problems(
                 sized(130, 150, 32, {.causal = causal, .batch = 2, .heads = 4, .key_heads = 2})))
            options.push_back({concat(p.name, causal ? ", causal" : ""), std::move(p.problem)});
    options.push_back(
        {"bias of every score",
         sized(130, 150, 32, {.batch = 2, .heads = 4, .key_heads = 2, .biases = {Shape{2, 4, 130, 150}}})});
    for (const std::int64_t d : {1, 8, 16, 32, 33, 48, 80, 96, 128, 160, 192, 255, 256})
        options.push_back({concat("head dim ", d), sized(97, 81, d, {.causal = true})});
    for (const std::int64_t tile : {16, 32, 64, 128, 256})
        for (const std::int64_t offset : {-1, 0, 1})
            options.push_back({concat("length ", tile + offset),
                               sized(tile + offset, tile - offset, 32, {.causal = offset != 0})});
    return options;
}

Inputs make_inputs(const Context& cpu, const Option& option, DType dtype) {
    const Problem& problem = option.problem;
    constexpr double logit_gap = 17;  // exp(-17) is just below half a float32 ulp of 1
    switch (option.values) {
        case Values::random:
            return random_inputs(cpu, problem, dtype);
        case Values::off_zero:
            return offset_inputs(cpu, problem, dtype, 2);
        case Values::first_key_dominates:
            return sink_inputs(cpu, problem, dtype, 0, logit_gap);
        case Values::last_key_dominates:
            return sink_inputs(cpu, problem, dtype, problem.keys - 1, logit_gap);
    }
    throw Error("gradcheck: unknown numbers");
}

/// Copies the inputs to ctx's device. With `strided`, a head's rows are not adjacent and its columns are two
/// elements apart.
Inputs copy_to_device(const Context& ctx, const Context& cpu, const Inputs& in, bool strided) {
    const auto copy_dense = [&](const Tensor& x) {
        return x.defined() ? from_host(ctx, to_host(cpu, x), x.shape(), x.dtype()) : x;
    };
    const auto copy_tensor = [&](const Tensor& x) {
        const Tensor dense = copy_dense(x);
        if (!strided) return dense;
        const Tensor wide = zeros(ctx, {x.size(0), x.size(2), x.size(1), x.size(3), 2}, x.dtype());
        const Tensor view = wide.select(4, 1).transpose(1, 2);
        copy(ctx, view, dense);
        return view;
    };
    Inputs copied = in;
    for (Tensor* x : {&copied.q, &copied.k, &copied.v, &copied.d_o}) *x = copy_tensor(*x);
    for (Tensor* x : copied.option_tensors()) *x = copy_dense(*x);
    return copied;
}

std::vector<Finding> compare_results(const Option& option, DType dtype, const Result& naive,
                                     const Result& result, const Reference& reference, bool is_naive) {
    if (is_naive) return largest_errors(naive, result, reference, factors_of(DType::f32));
    std::vector<Finding> findings = largest_errors(naive, result, reference, factors_of(dtype));
    const auto add = [&](const std::vector<Finding>& more) {
        findings.insert(findings.end(), more.begin(), more.end());
    };
    add(root_mean_square_errors(naive, result, reference, average_factors_of(dtype)));
    // With scale 0 all keys in a row have the same P, whose rounding puts the same error into every dV row.
    const bool rows_differ =
        (option.values == Values::random || option.values == Values::off_zero) && option.problem.scale != 0.0;
    if (rows_differ) add(biases(option.problem, result, reference));
    return findings;
}

}  // namespace

void check_attention_accuracy(const Context& ctx, DType dtype, const AccuracyReport& report) {
    const Context cpu = ctx.device().is_cpu() ? ctx : Context(Device::cpu());
    const std::vector<Implementation> implementations = make_implementations(ctx, dtype);
    for (const Option& option : all_options()) {
        const Inputs in = make_inputs(cpu, option, dtype);
        const Reference reference =
            float64_reference(cpu, option.problem, in, roundoff_of(dtype, ctx.device()));
        const Result naive = run(cpu, in, option.problem.options(Algorithm::naive));
        const Inputs on_device = copy_to_device(ctx, cpu, in, option.strided);
        for (const Implementation& implementation : implementations) {
            if (option.problem.row_ranges.rank() > 0 && !implementation.takes_row_ranges) continue;
            const Result result = implementation.run(on_device, option.problem.options());
            report({.op = "attention",
                    .dtype = dtype,
                    .kernel = implementation.name,
                    .option = option.name,
                    .worst = worst_of(
                        compare_results(option, dtype, naive, result, reference, implementation.is_naive))});
        }
    }
}

}  // namespace gradtile::cli
