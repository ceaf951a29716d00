// Time and activation memory of whole training steps, and what they consist of.
//
//     step_bench --model char-cpu --dtype f32 --threads 2 [--recompute activations] [--breakdown]
//     step_bench --device cuda --model gpt2-124m --batch 16 [--no-graph]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/gemm.h>
#include <gradtile/core/step_graph.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/linear_gelu.h>
#include <gradtile/layers/memory_plan.h>
#include <gradtile/layers/transformer.h>
#include <gradtile/train/adamw.h>
#include <gradtile/train/device_peak.h>
#include <gradtile/train/global_norm.h>

using namespace gradtile;

namespace {

struct Workload {
    std::string name;
    ModelConfig model;
    std::int64_t batch;
    int steps;
};

/// The sizes whose figures bench/results holds.
std::vector<Workload> workloads() {
    const ModelConfig char_cpu{.layers = 4,
                               .heads = 4,
                               .width = 128,
                               .context = 64,
                               .vocabulary = 65,
                               .activation = Activation::gelu,
                               .bias = false};
    const ModelConfig char_384{.layers = 6,
                               .heads = 6,
                               .width = 384,
                               .context = 256,
                               .vocabulary = 65,
                               .activation = Activation::gelu,
                               .bias = false};
    const ModelConfig gpt2{.layers = 12, .heads = 12, .width = 768, .context = 64, .vocabulary = 50257};
    const ModelConfig llama{.layers = 6,
                            .heads = 6,
                            .kv_heads = 2,
                            .width = 192,
                            .context = 128,
                            .vocabulary = 96,
                            .norm = Norm::rms,
                            .activation = Activation::swiglu,
                            .positions = Positions::rope,
                            .bias = false,
                            .tied_head = false};
    return {{"char-cpu", char_cpu, 12, 40},
            {"char-384", char_384, 16, 4},
            {"gpt2-124m", gpt2, 4, 4},
            {"llama-tiny", llama, 12, 10}};
}

/// The sizes that a GPU is for.
std::vector<Workload> gpu_workloads() {
    const ModelConfig char_384{.layers = 6,
                               .heads = 6,
                               .width = 384,
                               .context = 256,
                               .vocabulary = 65,
                               .activation = Activation::gelu,
                               .bias = false};
    ModelConfig with_dropout = char_384;
    with_dropout.dropout = 0.2;
    const auto gpt2 = [](std::int64_t layers, std::int64_t heads, std::int64_t width) {
        return ModelConfig{
            .layers = layers, .heads = heads, .width = width, .context = 1024, .vocabulary = 50257};
    };
    return {{"char-384", char_384, 64, 50},          {"char-384-dropout", with_dropout, 64, 50},
            {"gpt2-124m", gpt2(12, 12, 768), 4, 20}, {"gpt2-124m", gpt2(12, 12, 768), 16, 20},
            {"gpt2-124m", gpt2(12, 12, 768), 64, 8}, {"gpt2-350m", gpt2(24, 16, 1024), 32, 8},
            {"gpt2-774m", gpt2(36, 20, 1280), 16, 8}};
}

enum class Clock { wall, calling_thread };
Clock measured = Clock::wall;

double now_milliseconds() {
    timespec now{};
    clock_gettime(measured == Clock::wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

double milliseconds(const std::function<void()>& work) {
    const double start = now_milliseconds();
    work();
    return now_milliseconds() - start;
}

void synchronize(const Context& ctx) {
    if (ctx.device().is_cuda()) cuda::synchronize(ctx.device(), ctx.stream());
}

/// Median of `runs` calls after one that warms up; a GPU is waited for after `calls` of them.
double median_milliseconds(const Context& ctx, int runs, const std::function<void()>& work, int calls = 1) {
    work();
    synchronize(ctx);
    std::vector<double> times;
    for (int i = 0; i < runs; ++i)
        times.push_back(milliseconds([&] {
                            for (int call = 0; call < calls; ++call) work();
                            synchronize(ctx);
                        }) /
                        calls);
    std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
    return times[static_cast<std::size_t>(runs / 2)];
}

Tensor generated_tokens(const Context& ctx, const Shape& shape, std::int64_t vocabulary) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.elements()));
    std::uint32_t state = 1;
    for (std::int32_t& token : tokens) {
        state = 1664525u * state + 1013904223u;
        token = static_cast<std::int32_t>((state >> 8) % static_cast<std::uint32_t>(vocabulary));
    }
    return from_host(ctx, tokens, shape);
}

/// One kind of operator in a step: how often it runs, and its work.
struct Part {
    std::string name;
    std::int64_t count;
    double flops;  ///< of one run; 0 where bandwidth counts
    std::function<void()> work;
};

void add_linear(std::vector<Part>& parts, const Context& ctx, const Linear& linear, std::int64_t rows,
                std::int64_t count) {
    const Tensor x = randn(ctx, {rows, linear.in_features()}, linear.weight.value().dtype(), Seed{1});
    const Tensor dy = randn(ctx, {rows, linear.out_features()}, x.dtype(), Seed{2});
    const double flops = 2.0 * static_cast<double>(rows * linear.in_features() * linear.out_features());
    parts.push_back({linear.weight.name() + " forward", count, flops, [=, &ctx] {
                         Linear::Saved saved;
                         linear.forward(ctx, x, saved);
                     }});
    parts.push_back({linear.weight.name() + " backward", count, 2.0 * flops,
                     [=, &ctx] { linear.backward(ctx, dy, Linear::Saved{x}); }});
}

/// An MLP's two layers, GELU timed together with its products.
void add_gelu_mlp(std::vector<Part>& parts, const Context& ctx, const Mlp& mlp, std::int64_t rows,
                  std::int64_t count) {
    const Linear &up = mlp.up, &down = mlp.down;
    const DType dtype = up.weight.value().dtype();
    const Gelu::Form form = mlp.activation == Activation::gelu ? Gelu::Form::exact : Gelu::Form::tanh;
    const Tensor x = randn(ctx, {rows, up.in_features()}, dtype, Seed{1});
    const Tensor dy = randn(ctx, x.shape(), dtype, Seed{2});
    const Tensor hidden = randn(ctx, {rows, up.out_features()}, dtype, Seed{5});
    const Tensor y = empty_like(ctx, hidden), d_hidden = empty_like(ctx, hidden);
    const double flops = 2.0 * static_cast<double>(hidden.elements() * up.in_features());
    const Tensor bias = up.bias.defined() ? up.bias.value() : Tensor();
    parts.push_back({"fc and gelu forward", count, flops,
                     [=, &ctx] { linear_gelu_forward(ctx, y, hidden, x, up.weight.value(), bias, form); }});
    parts.push_back({"proj forward", count, flops, [=, &ctx] {
                         Linear::Saved saved;
                         down.forward(ctx, y, saved);
                     }});
    parts.push_back({"proj weight gradient", count, flops,
                     [=, &ctx] { down.accumulate_gradients(ctx, dy, Linear::Saved{y}); }});
    parts.push_back({"proj and gelu backward", count, flops, [=, &ctx] {
                         linear_gelu_backward(ctx, d_hidden, dy, down.weight.value(), hidden, form);
                     }});
    parts.push_back(
        {"fc backward", count, 2.0 * flops, [=, &ctx] { up.backward(ctx, d_hidden, Linear::Saved{x}); }});
}

/// Every operator of a step by itself, on tensors of the step's shapes.
std::vector<Part> parts_of_step(const Context& ctx, const Transformer& model,
                                const ParameterStore& parameters, AdamW& optimizer, const Tensor& tokens) {
    const ModelConfig& config = model.config;
    const std::int64_t rows = tokens.elements(), layers = config.layers;
    const DType dtype = parameters.dtype();
    const TransformerBlock& block = model.blocks.front();
    const Tensor x = randn(ctx, {tokens.size(0), tokens.size(1), config.width}, dtype, Seed{3});
    const Tensor dx = randn(ctx, x.shape(), dtype, Seed{4});
    std::vector<Part> parts;

    for (const Linear* linear : {&block.attn.qkv, &block.attn.proj})
        add_linear(parts, ctx, *linear, rows, layers);

    auto attention_saved = std::make_shared<MultiHeadAttention::Saved>();
    block.attn.forward(ctx, x, *attention_saved);
    const attention::Saved operands = attention_saved->attention;
    attention::Options causal;
    causal.causal = true;
    const double attention_flops = 2.0 * static_cast<double>(rows * config.width * (tokens.size(1) + 1));
    parts.push_back({"attention forward", layers, attention_flops, [=, &ctx] {
                         attention::Saved saved;
                         attention::forward(ctx, operands.q, operands.k, operands.v, causal, saved);
                     }});
    parts.push_back({"attention backward", layers, 2.5 * attention_flops,
                     [=, &ctx] { attention::backward(ctx, operands.o, causal, operands); }});
    if (block.attn.rope)
        parts.push_back({"rope (q and k)", 2 * layers, 0, [=, &ctx, &block] {
                             block.attn.rope->forward(ctx, operands.q);
                             block.attn.rope->forward(ctx, operands.k);
                         }});

    auto norm_saved = std::make_shared<ConfiguredNorm::Saved>();
    block.norm_1.forward(ctx, x, *norm_saved);
    const Tensor branch = randn(ctx, x.shape(), dtype, Seed{7});
    parts.push_back({"residual and norm forward", 2 * layers, 0, [=, &ctx, &block] {
                         ConfiguredNorm::Saved saved;
                         Residual residual{x, branch};
                         block.norm_1.forward(ctx, residual, saved);
                     }});
    parts.push_back({"norm backward", 2 * layers + 1, 0,
                     [=, &ctx, &block] { block.norm_1.backward_add(ctx, x, *norm_saved, dx); }});

    if (config.activation == Activation::swiglu) {
        for (const Linear* linear : {&block.mlp.up, &block.mlp.down})
            add_linear(parts, ctx, *linear, rows, layers);
        const Tensor hidden = randn(ctx, {rows, block.mlp.up.out_features()}, dtype, Seed{5});
        const Tensor d_out = randn(ctx, {rows, config.hidden_width()}, dtype, Seed{6});
        parts.push_back({"swiglu forward", layers, 0, [=, &ctx] {
                             SwiGlu::Saved saved;
                             SwiGlu{}.forward(ctx, hidden, saved);
                         }});
        parts.push_back(
            {"swiglu backward", layers, 0, [=, &ctx] { SwiGlu{}.backward(ctx, d_out, {hidden}); }});
    } else {
        add_gelu_mlp(parts, ctx, block.mlp, rows, layers);
    }
    parts.push_back({"embedding forward", 1, 0, [=, &ctx, &model] {
                         Embedding::Saved saved;
                         PositionEmbedding::Saved positions;
                         const Tensor y = model.wte.forward(ctx, tokens, saved);
                         if (model.wpe) model.wpe->forward(ctx, y, positions);
                     }});
    parts.push_back({"embedding backward", 1, 0, [=, &ctx, &model] {
                         if (model.wpe) model.wpe->backward(ctx, dx, {});
                         model.wte.backward(ctx, dx, {tokens});
                     }});
    parts.push_back({"head and loss", 1, 6.0 * static_cast<double>(rows * config.width * config.vocabulary),
                     [=, &ctx, &model] {
                         CrossEntropyHead::Saved saved;
                         model.head.forward(ctx, x, tokens, saved);
                     }});
    parts.push_back(
        {"gradient norm", 1, 0, [&] { clip_global_norm(ctx, parameters.gradients(), {.max_norm = 1.0}); }});
    parts.push_back({"AdamW", 1, 0, [&] { optimizer.step(ctx, 1e-9, {.zero_gradients = true}); }});
    return parts;
}

void print_breakdown(const Context& ctx, const std::vector<Part>& parts, int runs, double step) {
    const int calls = ctx.device().is_cuda() ? 10 : 1;  // as in a step, a launch hides behind the one before

    double total = 0.0;
    std::printf("  %-32s %5s %9s %9s %6s %9s\n", "operator", "count", "us each", "ms/step", "share",
                "GFLOP/s");
    for (const Part& part : parts) {
        const double each = median_milliseconds(ctx, runs, part.work, calls);
        const double in_step = each * static_cast<double>(part.count);
        total += in_step;
        std::printf("  %-32s %5lld %9.1f %9.3f %5.1f%% ", part.name.c_str(),
                    static_cast<long long>(part.count), 1e3 * each, in_step, 100.0 * in_step / step);
        std::printf(part.flops > 0 ? "%9.0f\n" : "        -\n", part.flops / each / 1e6);
    }
    std::printf("  %-32s %5s %9s %9.3f %5.1f%%\n", "sum", "", "", total, 100.0 * total / step);
}

MemoryPlan plan_of(const Context& ctx, const Workload& workload, DType dtype) {
    return plan_memory(ctx, {.model = workload.model, .dtype = dtype, .micro_batch = workload.batch});
}

std::string title_of(const Workload& workload, DType dtype) {
    return concat(workload.name, " B", workload.batch, ' ', dtype,
                  " recompute=", name_of(workload.model.recompute));
}

std::string memory_of(const MemoryPlan& plan) {
    char text[80];
    std::snprintf(text, sizeof text, "activations %.1f MiB, in all %.1f MiB",
                  static_cast<double>(plan.activations) / (1 << 20),
                  static_cast<double>(plan.total()) / (1 << 20));
    return text;
}

struct HowToRun {
    bool graph = true, breakdown = false;
    std::int64_t micro_steps = 1;
};

void run(const Context& ctx, const Workload& workload, DType dtype, const HowToRun& how_to) {
    const MemoryPlan plan = plan_of(ctx, workload, dtype);
    const auto arena = std::make_shared<Arena>(ctx.device(), plan.activations);
    const Context inside = ctx.with_allocator(arena);

    ParameterStore parameters;
    const Transformer model(workload.model, parameters);
    parameters.allocate(ctx, dtype);
    parameters.initialize(ctx, Seed{1});
    AdamW optimizer(ctx, parameters, {.beta2 = 0.99, .weight_decay = 0.1});
    const Tensor tokens =
        generated_tokens(ctx, {workload.batch, workload.model.context}, workload.model.vocabulary);

    const Tensor rate = from_host(ctx, std::vector<double>{1e-4}, {1}, DType::f64);
    const Tensor live_seed = zeros(ctx, {2}, DType::i32);
    const Tensor targets = tokens;  // what is learned does not matter here
    const auto compute = [&] {
        Tensor loss;
        for (std::int64_t micro_step = 0; micro_step < how_to.micro_steps; ++micro_step) {
            const ForwardOptions options{.gradient_scale = 1.0 / static_cast<double>(how_to.micro_steps),
                                         .dropout = DropoutKey::of_live_step(live_seed, micro_step)};
            Transformer::Saved saved;
            loss = {};  // every micro-step finds the arena empty
            loss = model.forward(inside, tokens, targets, saved, options);
            model.backward(inside, saved);
        }
        const Clip clip = clip_global_norm(inside, parameters.gradients(), {.max_norm = 1.0, .loss = loss});
        optimizer.step(inside, rate, {.gradient_scale = clip.scale, .zero_gradients = true});
    };
    StepGraph graph;
    std::string how;
    if (ctx.device().is_cuda()) {
        how = " eager";
        if (how_to.graph) {
            compute();
            synchronize(ctx);
            const std::size_t before = cuda::device_memory(ctx.device()).free_bytes;
            const double capture = milliseconds([&] { graph.capture(inside, compute); });
            const std::size_t after = cuda::device_memory(ctx.device()).free_bytes;
            how = concat(" graph of ", graph.nodes(), " nodes (", std::llround(capture), " ms, ",
                         (before - std::min(before, after)) >> 20, " MiB)");
        }
    }
    const double step = median_milliseconds(ctx, workload.steps, [&] {
        if (graph.captured()) {
            graph.replay(inside);
        } else {
            compute();
        }
    });
    const double tokens_per_step = static_cast<double>(how_to.micro_steps * tokens.elements());
    const double flops =
        flops_per_token(workload.model, workload.model.context) * tokens_per_step / step * 1e3;
    if (ctx.device().is_cpu()) how = concat(" threads=", ctx.threads().size());
    std::printf("%-45s%s: %9.2f ms/step %9.0f tokens/s %7.0f GFLOP/s, %s", title_of(workload, dtype).c_str(),
                how.c_str(), step, 1e3 * tokens_per_step / step, flops / 1e9, memory_of(plan).c_str());
    if (const double peak = peak_flops(ctx.device(), dtype); peak > 0.0)
        std::printf(", MFU %.1f%%", 100.0 * flops / peak);
    std::printf("\n");
    std::fflush(stdout);
    if (!how_to.breakdown) return;
    // Operators by themselves hold more at once than a step does. On a GPU their memory comes from an arena,
    // as in a step; the system's allocations would be what is timed.
    Context around = ctx;
    if (ctx.device().is_cuda())
        around = ctx.with_allocator(
            std::make_shared<Arena>(ctx.device(), 2 * plan.activations + (std::size_t{1} << 30)));
    print_breakdown(around, parts_of_step(around, model, parameters, optimizer, tokens), workload.steps,
                    step);
}

}  // namespace

int main(int argc, char** argv) try {
    CLI::App app{"Times training steps"};
    std::vector<std::string> names, dtypes, levels{"none"};
    std::string device = "cpu";
    int threads = 2, steps = 0;
    std::int64_t batch = 0, micro_steps = 1;
    bool memory = false, breakdown = false, cpu_time = false, no_graph = false;
    app.add_option("--model", names,
                   "cpu: char-cpu, char-384, gpt2-124m, llama-tiny; cuda: char-384, char-384-dropout, "
                   "gpt2-124m, gpt2-350m, gpt2-774m");
    app.add_option("--dtype", dtypes, "f32, bf16");
    app.add_option("--device", device, "cpu or cuda");
    app.add_flag("--no-graph", no_graph, "cuda: launch every kernel instead of replaying a captured graph");
    app.add_option("--threads", threads, "threads that work");
    app.add_option("--steps", steps, "timed steps; 0: as many as the model's size suggests");
    app.add_option("--batch", batch, "sequences a step; 0: the model's own sizes");
    app.add_option("--micro-steps", micro_steps, "forward and backward passes a step");
    app.add_option("--recompute", levels, "none, activations, block: one row each");
    app.add_flag("--memory", memory, "print the memory plans alone");
    app.add_flag("--breakdown", breakdown, "also time every operator of the step by itself");
    app.add_flag("--cpu-time", cpu_time,
                 "time on a core of the calling thread alone: for --threads 1 on a busy machine");
    CLI11_PARSE(app, argc, argv);
    check(!cpu_time || threads == 1, "--cpu-time sees one thread only; add --threads 1");
    if (cpu_time) measured = Clock::calling_thread;

    check(device == "cpu" || device == "cuda", "--device: '", device, "'; expected cpu or cuda");
    const bool gpu = device == "cuda";
    const Context ctx(gpu ? Device::cuda() : Device::cpu(), threads);
    if (names.empty())
        names = gpu ? std::vector<std::string>{"char-384", "char-384-dropout", "gpt2-124m"}
                    : std::vector<std::string>{"char-cpu", "char-384", "gpt2-124m"};
    if (dtypes.empty())
        dtypes = gpu ? std::vector<std::string>{"bf16"} : std::vector<std::string>{"f32", "bf16"};
    if (!gpu) std::printf("matrix library: %s\n", cpu_matrix_library());
    std::string last_name;
    for (Workload workload : gpu ? gpu_workloads() : workloads()) {
        if (std::find(names.begin(), names.end(), workload.name) == names.end()) continue;
        if (steps > 0) workload.steps = steps;
        if (batch > 0) {
            if (workload.name == last_name) continue;  // the same model at another of its own sizes
            workload.batch = batch;
        }
        last_name = workload.name;
        for (const std::string& dtype : dtypes)
            for (const std::string& level : levels) {
                workload.model.recompute = enum_named<Recompute>(level, "--recompute");
                if (memory) {
                    std::printf("%-45s: %s\n", title_of(workload, dtype_named(dtype)).c_str(),
                                memory_of(plan_of(ctx, workload, dtype_named(dtype))).c_str());
                    continue;
                }
                run(ctx, workload, dtype_named(dtype),
                    {.graph = !no_graph, .breakdown = breakdown, .micro_steps = micro_steps});
            }
    }
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "step_bench: %s\n", error.what());
    return 1;
}
