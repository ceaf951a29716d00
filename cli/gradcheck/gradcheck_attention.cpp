// Attention in the dtypes that train: every set of kernels of this machine, option by option.
#include <gradtile/attention/cpu/selection.h>
#include <gradtile/cli/gradcheck/gradcheck_accuracy.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::cli {
namespace {

using namespace attention;
using namespace attention::accuracy;

/// One way to compute attention in a dtype.
struct Implementation {
    std::string name;
    std::function<Result(const Inputs&, const Options&)> run;
    bool is_naive = false;
};

template <class T>
void add_cpu_kernels(const Context& ctx, std::vector<Implementation>& implementations) {
    for (const cpu::FlashKernels<T>* kernels : cpu::usable_kernels<T>())
        implementations.push_back({kernels->name, [&ctx, kernels](const Inputs& in, const Options& options) {
                                       const cpu::ForcedKernels<T> forced(kernels);
                                       return run(ctx, in, options);
                                   }});
}

std::vector<Implementation> implementations_of(const Context& ctx, DType dtype) {
    std::vector<Implementation> implementations;
    if (ctx.device().is_cpu()) {
        if (dtype == DType::f32) add_cpu_kernels<float>(ctx, implementations);
        if (dtype == DType::bf16) add_cpu_kernels<bfloat16>(ctx, implementations);
        if (dtype == DType::f16) add_cpu_kernels<float16>(ctx, implementations);
        return implementations;
    }
    const auto add = [&](const std::string& name, Algorithm algorithm, bool deterministic) {
        implementations.push_back({name,
                                   [&ctx, algorithm, deterministic](const Inputs& in, Options options) {
                                       options.algorithm = algorithm;
                                       options.deterministic = deterministic;
                                       return run(ctx, in, options);
                                   },
                                   algorithm == Algorithm::naive});
    };
    add("cuda", Algorithm::flash, false);
    add("cuda, deterministic", Algorithm::flash, true);
    add("cuda, naive", Algorithm::naive, false);
    return implementations;
}

enum class Numbers { random, off_zero, first_key_dominates, last_key_dominates };

struct Option {
    std::string name;
    Problem problem;
    Numbers numbers = Numbers::random;
    bool strided = false;
};

/// Head dims of every dispatch, lengths around every tile, and each option of attention.h by itself.
std::vector<Option> options_of(DType dtype) {
    const bool any_head_dim = !is_16_bit(dtype);
    std::vector<Option> options{
        {"no mask",
         {.queries = 130, .keys = 150, .d_qk = 64, .d_v = 64, .batch = 2, .heads = 2, .key_heads = 2}},
        {"causal", {.queries = 150, .keys = 150, .d_qk = 64, .d_v = 64, .causal = true, .batch = 2}},
        {"window", {.queries = 300, .keys = 260, .d_qk = 32, .d_v = 32, .window = {.left = 70, .right = 20}}},
        {"causal window",
         {.queries = 300, .keys = 300, .d_qk = 32, .d_v = 32, .causal = true, .window = {.left = 100}}},
        {"top left", {.queries = 100, .keys = 150, .d_qk = 32, .d_v = 32, .causal = true, .top_left = true}},
        {"heads share keys",
         {.queries = 130, .keys = 150, .d_qk = 32, .d_v = 32, .causal = true, .heads = 4, .key_heads = 2}},
        {"all heads share keys",
         {.queries = 130, .keys = 150, .d_qk = 64, .d_v = 64, .causal = true, .heads = 4, .key_heads = 1}},
        {"few queries",
         {.queries = 3, .keys = 799, .d_qk = 64, .d_v = 64, .causal = true, .heads = 2, .key_heads = 2}},
        {"rows without keys", {.queries = 203, .keys = 113, .d_qk = 64, .d_v = 64, .causal = true}},
        {"keys without rows",
         {.queries = 100, .keys = 256, .d_qk = 64, .d_v = 64, .window = {.right = 5}, .top_left = true}},
        {"one row, one key", {.queries = 1, .keys = 1, .d_qk = 64, .d_v = 64, .heads = 2, .key_heads = 2}},
        {"unequal head dims",
         any_head_dim ? Problem{.queries = 65, .keys = 81, .d_qk = 7, .d_v = 33, .causal = true}
                      : Problem{.queries = 65, .keys = 81, .d_qk = 40, .d_v = 24, .causal = true}},
        {"negative scale", {.queries = 70, .keys = 90, .d_qk = 16, .d_v = 16, .causal = true, .scale = -0.4}},
        {"scale 0", {.queries = 70, .keys = 90, .d_qk = 16, .d_v = 16, .causal = true, .scale = 0.0}},
        {"256 short heads",
         {.queries = 40,
          .keys = 40,
          .d_qk = 64,
          .d_v = 64,
          .causal = true,
          .batch = 16,
          .heads = 16,
          .key_heads = 16}},
        {"several blocks", {.queries = 520, .keys = 1100, .d_qk = 64, .d_v = 64, .causal = true}},
        {"strided tensors",
         {.queries = 65,
          .keys = 81,
          .d_qk = 40,
          .d_v = 40,
          .causal = true,
          .batch = 2,
          .heads = 4,
          .key_heads = 2},
         Numbers::random,
         true},
        {"keys and values off zero",
         {.queries = 150, .keys = 170, .d_qk = 64, .d_v = 64, .batch = 2, .heads = 2, .key_heads = 2},
         Numbers::off_zero},
        {"first of 8192 keys dominates",
         {.queries = 8, .keys = 8192, .d_qk = 64, .d_v = 64},
         Numbers::first_key_dominates},
        {"last of 8192 keys dominates",
         {.queries = 8, .keys = 8192, .d_qk = 64, .d_v = 64},
         Numbers::last_key_dominates}};
    std::vector<std::int64_t> head_dims = {8, 16, 32, 48, 80, 96, 128, 160, 192, 256};
    if (any_head_dim) head_dims.insert(head_dims.end(), {1, 33, 255});
    for (const std::int64_t d : head_dims)
        options.push_back(
            {concat("head dim ", d), {.queries = 97, .keys = 81, .d_qk = d, .d_v = d, .causal = true}});
    for (const std::int64_t tile : {16, 32, 64, 128, 256})
        for (const std::int64_t past : {-1, 0, 1})
            options.push_back(
                {concat("length ", tile + past),
                 {.queries = tile + past, .keys = tile - past, .d_qk = 32, .d_v = 32, .causal = past != 0}});
    return options;
}

Inputs inputs_of(const Context& cpu, const Option& option, DType dtype) {
    const Problem& problem = option.problem;
    constexpr double height = 17;  // exp(-17) is just below float32's rounding of 1
    switch (option.numbers) {
        case Numbers::random:
            return random_inputs(cpu, problem, dtype);
        case Numbers::off_zero:
            return offset_inputs(cpu, problem, dtype, 2);
        case Numbers::first_key_dominates:
            return sink_inputs(cpu, problem, dtype, 0, height);
        case Numbers::last_key_dominates:
            return sink_inputs(cpu, problem, dtype, problem.keys - 1, height);
    }
    throw Error("gradcheck: unknown numbers");
}

/// The same numbers on ctx's device; `strided`: rows of other heads between a head's, columns two apart.
Inputs placed(const Context& ctx, const Context& cpu, const Inputs& in, bool strided) {
    const auto place = [&](const Tensor& x) {
        const Tensor dense = from_host(ctx, to_host(cpu, x), x.shape(), x.dtype());
        if (!strided) return dense;
        const Tensor wide = zeros(ctx, {x.size(0), x.size(2), x.size(1), x.size(3), 2}, x.dtype());
        const Tensor view = wide.select(4, 1).transpose(1, 2);
        copy(ctx, view, dense);
        return view;
    };
    return {place(in.q), place(in.k), place(in.v), place(in.d_o)};
}

std::vector<Finding> findings_of(const Option& option, DType dtype, const Result& naive, const Result& result,
                                 const Reference& reference, bool is_naive) {
    if (is_naive) return largest_errors(naive, result, reference, factors_of(DType::f32));
    std::vector<Finding> findings = largest_errors(naive, result, reference, factors_of(dtype));
    const auto add = [&](const std::vector<Finding>& more) {
        findings.insert(findings.end(), more.begin(), more.end());
    };
    add(root_mean_square_errors(naive, result, reference, average_factors_of(dtype)));
    const bool rows_differ = option.numbers == Numbers::random || option.numbers == Numbers::off_zero;
    if (rows_differ) add(biases(option.problem, result, reference));
    return findings;
}

}  // namespace

void check_attention_accuracy(const Context& ctx, DType dtype, const AccuracyReport& report) {
    const Context cpu = ctx.device().is_cpu() ? ctx : Context(Device::cpu());
    const std::vector<Implementation> implementations = implementations_of(ctx, dtype);
    for (const Option& option : options_of(dtype)) {
        const Inputs in = inputs_of(cpu, option, dtype);
        const Reference reference = definition(cpu, option.problem, in, roundoff_of(dtype, ctx.device()));
        const Result naive = run(cpu, in, option.problem.options(Algorithm::naive));
        const Inputs on_device = placed(ctx, cpu, in, option.strided);
        for (const Implementation& implementation : implementations) {
            const Result result = implementation.run(on_device, option.problem.options());
            report({.op = "attention",
                    .dtype = dtype,
                    .kernel = implementation.name,
                    .option = option.name,
                    .worst = worst_of(
                        findings_of(option, dtype, naive, result, reference, implementation.is_naive))});
        }
    }
}

}  // namespace gradtile::cli
