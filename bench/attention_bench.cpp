// Attention on the CPU: GFLOP/s forward and backward, what a second thread brings, and scratch bytes, beside
// a matrix product in the same run.
//
//     attention_bench [--dtype f32 bf16] [--threads 1 2] [--rounds 7] [--layout bhsd] [--case S4096]
//     [--large]
//
// FLOPs: 4 B H Sq Sk D forward, half of it under a causal mask; backward 2.5 times as many (five products for
// two). Cases, dtypes and thread counts take turns inside a round, so that a busy moment hits all alike.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include <gradtile/attention/attention.h>
#include <gradtile/attention/flash_select_cpu.h>
#include <gradtile/core/gemm.h>
#include <gradtile/core/random.h>

using namespace gradtile;

namespace {

struct Case {
    std::string name;
    std::int64_t batch, heads, length, head_dim;
    bool causal;

    double forward_flops() const {
        const double all = 4.0 * static_cast<double>(batch * heads * head_dim) * static_cast<double>(length) *
                           static_cast<double>(length);
        return causal ? all / 2 : all;
    }
    double backward_flops() const { return 2.5 * forward_flops(); }
    attention::Options options() const { return {.causal = causal}; }
};

/// The sizes whose figures bench/results holds.
std::vector<Case> cases(bool large) {
    std::vector<Case> all{{"B1_H12_S1024_D64_causal", 1, 12, 1024, 64, true},
                          {"B1_H12_S4096_D64_causal", 1, 12, 4096, 64, true},
                          {"B1_H1_S16384_D64_causal", 1, 1, 16384, 64, true},
                          {"B1_H1_S16384_D64", 1, 1, 16384, 64, false},
                          {"B12_H4_S64_D32_causal", 12, 4, 64, 32, true},
                          {"B16_H6_S256_D64_causal", 16, 6, 256, 64, true}};
    if (large) all.push_back({"B1_H1_S65536_D64_causal", 1, 1, 65536, 64, true});
    return all;
}

struct Settings {
    std::vector<int> threads{1, 2};
    std::vector<std::string> dtypes{"f32", "bf16"};
    std::string name_contains, layout = "bhsd", kernels;
    int rounds = 7;
    bool large = false, cpu_time = false;
};

/// [B, S, H, D] views of memory in the given order.
Tensor as_layout(const Context& ctx, const Case& c, DType dtype, std::string_view layout, Seed seed) {
    if (layout == "bshd") return randn(ctx, {c.batch, c.length, c.heads, c.head_dim}, dtype, seed);
    return randn(ctx, {c.batch, c.heads, c.length, c.head_dim}, dtype, seed).transpose(1, 2);
}

struct Operands {
    Tensor q, k, v, o, d_o;
    attention::Gradients gradients;

    Operands(const Context& ctx, const Case& c, DType dtype, std::string_view layout) {
        const auto make = [&](std::uint64_t seed) { return as_layout(ctx, c, dtype, layout, Seed{seed}); };
        o = make(4);
        d_o = make(5);
        if (layout == "packed") {  // slices of one projection, as multi-head attention passes them
            const Shape packed{c.batch, c.length, 3 * c.heads, c.head_dim};
            const Tensor qkv = randn(ctx, packed, dtype, Seed{1}), d_qkv = empty(ctx, packed, dtype);
            const auto part = [&](const Tensor& x, int i) { return x.slice(2, i * c.heads, c.heads); };
            q = part(qkv, 0), k = part(qkv, 1), v = part(qkv, 2);
            gradients = {.q = part(d_qkv, 0), .k = part(d_qkv, 1), .v = part(d_qkv, 2)};
        } else {
            q = make(1), k = make(2), v = make(3);
            gradients = {.q = make(6), .k = make(7), .v = make(8)};
        }
    }
};

double now(bool cpu_time) {
    timespec time{};
    clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Seconds of one call; short work repeats until a timing is long enough to trust.
double seconds(const Settings& settings, double flops, const std::function<void()>& work) {
    const int repeats = std::max(1, static_cast<int>(1e9 / flops));
    const double begin = now(settings.cpu_time);
    for (int i = 0; i < repeats; ++i) work();
    return (now(settings.cpu_time) - begin) / repeats;
}

class Timings {
  public:
    void add(double seconds) { seconds_.push_back(seconds); }
    double best() const { return *std::min_element(seconds_.begin(), seconds_.end()); }
    double median() const {
        std::vector<double> sorted = seconds_;
        std::sort(sorted.begin(), sorted.end());
        return sorted[sorted.size() / 2];
    }

  private:
    std::vector<double> seconds_;
};

/// One case in one dtype on one number of threads: a line of the table.
struct Line {
    const Case* workload;
    const Operands* operands;
    std::size_t context;  ///< index into the list of thread counts
    Timings forward, backward;
};

void time_once(const Settings& settings, const Context& ctx, Line& line) {
    const Case& c = *line.workload;
    const Operands& in = *line.operands;
    attention::Saved saved;
    const auto forward = [&] { attention::forward(ctx, in.q, in.k, in.v, c.options(), saved, in.o); };
    const auto backward = [&] { attention::backward(ctx, in.d_o, c.options(), saved, in.gradients); };
    if (c.forward_flops() < 1e11) {  // warm up, unless that would take longer than it matters
        forward();
        backward();
    }
    line.forward.add(seconds(settings, c.forward_flops(), forward));
    line.backward.add(seconds(settings, c.backward_flops(), backward));
}

/// Megabytes that the passes need beyond inputs and outputs, from a dry run.
struct Scratch {
    double forward, backward;

    Scratch(const Context& ctx, const Case& c, DType dtype, std::string_view layout) {
        const auto arena = Arena::for_planning(Device::cpu());
        const Context plan = ctx.plan(arena);
        const Operands in(plan, c, dtype, layout);
        attention::Saved saved;
        const auto bytes_of = [&](auto&& work) {
            const std::size_t before = arena->bytes_in_use();
            arena->reset_peak();
            work();
            return static_cast<double>(arena->peak_bytes() - before);
        };
        const double with_lse =
            bytes_of([&] { attention::forward(plan, in.q, in.k, in.v, c.options(), saved, in.o); });
        forward = 1e-6 * (with_lse - static_cast<double>(saved.lse.bytes()));
        backward =
            1e-6 * bytes_of([&] { attention::backward(plan, in.d_o, c.options(), saved, in.gradients); });
    }
};

/// The yardstick for what the machine gives at this moment.
constexpr std::int64_t gemm_size = 2048;
double gemm_seconds(const Settings& settings, const Context& ctx, DType dtype) {
    const Tensor a = randn(ctx, {gemm_size, gemm_size}, dtype, Seed{1});
    const Tensor c = empty(ctx, {gemm_size, gemm_size}, DType::f32);
    return seconds(settings, 1e18, [&] { gemm(ctx, c, a, a); });
}

void print(const Settings& settings, const std::vector<Context>& contexts, DType dtype,
           const std::vector<Line>& lines) {
    std::printf("%-26s %7s %10s %10s %10s %10s %8s %8s %9s %9s\n", std::string(name_of(dtype)).c_str(),
                "threads", "fwd best", "fwd median", "bwd best", "bwd median", "fwd x1", "bwd x1", "fwd MB",
                "bwd MB");
    const Line* single = nullptr;
    for (const Line& line : lines) {
        const Case& c = *line.workload;
        const Context& ctx = contexts[line.context];
        if (line.context == 0) single = &line;
        const Scratch scratch(ctx, c, dtype, settings.layout);
        const double forward = 1e-9 * c.forward_flops(), backward = 1e-9 * c.backward_flops();
        std::printf("%-26s %7d %10.1f %10.1f %10.1f %10.1f %8.2f %8.2f %9.3f %9.3f\n", c.name.c_str(),
                    ctx.threads().size(), forward / line.forward.best(), forward / line.forward.median(),
                    backward / line.backward.best(), backward / line.backward.median(),
                    single->forward.best() / line.forward.best(),
                    single->backward.best() / line.backward.best(), scratch.forward, scratch.backward);
    }
}

void run(const Settings& settings) {
    std::vector<Case> selected = cases(settings.large);
    std::erase_if(selected,
                  [&](const Case& c) { return c.name.find(settings.name_contains) == std::string::npos; });
    check(!selected.empty(), "no case's name contains ", settings.name_contains);
    std::printf("float32 kernels: %s, bfloat16 kernels: %s, matrix library: %s, layout %s, %d rounds\n",
                attention::cpu::chosen_kernels<float>().name, attention::cpu::chosen_kernels<bfloat16>().name,
                cpu_matrix_library(), settings.layout.c_str(), settings.rounds);
    std::printf(
        "GFLOP/s; x1: speed over the first number of threads; MB: scratch beyond inputs and outputs\n");
    std::vector<Context> contexts;
    for (const int threads : settings.threads) contexts.emplace_back(Device::cpu(), threads);

    for (const std::string& name : settings.dtypes) {
        const DType dtype = dtype_named(name);
        std::vector<Line> lines;
        std::list<Operands> operands;
        for (const Case& c : selected) {
            operands.emplace_back(contexts.back(), c, dtype, settings.layout);
            for (std::size_t i = 0; i < contexts.size(); ++i)
                lines.push_back({.workload = &c,
                                 .operands = &operands.back(),
                                 .context = i,
                                 .forward = {},
                                 .backward = {}});
        }
        std::vector<Timings> gemms(contexts.size());
        for (int round = 0; round < settings.rounds; ++round) {
            for (std::size_t i = 0; i < contexts.size(); ++i)
                gemms[i].add(gemm_seconds(settings, contexts[i], dtype));
            for (Line& line : lines) time_once(settings, contexts[line.context], line);
        }
        std::printf("\n");
        for (std::size_t i = 0; i < contexts.size(); ++i)
            std::printf("%s gemm %lld^3, %d threads: %.0f GFLOP/s best, %.0f median\n", name.c_str(),
                        static_cast<long long>(gemm_size), contexts[i].threads().size(),
                        2e-9 * gemm_size * gemm_size * gemm_size / gemms[i].best(),
                        2e-9 * gemm_size * gemm_size * gemm_size / gemms[i].median());
        print(settings, contexts, dtype, lines);
    }
}

const attention::cpu::FlashKernels<float>* kernels_named(const std::string& name) {
    if (name.empty()) return nullptr;  // the fastest
    for (const auto* kernels : attention::cpu::usable_kernels<float>())
        if (name == kernels->name) return kernels;
    throw Error(concat("no float32 kernels called ", name, " run here"));
}

}  // namespace

int main(int argc, char** argv) try {
    CLI::App app{"Times attention forward and backward on the CPU"};
    Settings settings;
    app.add_option("--dtype", settings.dtypes, "f32, bf16, f16, f64")->capture_default_str();
    app.add_option("--threads", settings.threads, "numbers of threads; the first is what speed-ups refer to")
        ->capture_default_str();
    app.add_option("--rounds", settings.rounds, "timings of every line")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--layout", settings.layout,
                   "memory order: bhsd as PyTorch's SDPA, bshd, or packed (slices of one QKV projection)")
        ->check(CLI::IsMember({"bhsd", "bshd", "packed"}))
        ->capture_default_str();
    app.add_option("--case", settings.name_contains, "only cases whose name contains this");
    app.add_option("--kernels", settings.kernels, "float32 kernels to use; default: the fastest");
    app.add_flag("--large", settings.large, "also one head of length 65,536");
    app.add_flag("--cpu-time", settings.cpu_time, "count processor time: for --threads 1 on a busy machine");
    CLI11_PARSE(app, argc, argv);
    check(!settings.cpu_time || settings.threads == std::vector{1},
          "--cpu-time adds threads' times up; use it with --threads 1");
    const attention::cpu::ForcedKernels<float> forced(kernels_named(settings.kernels));
    run(settings);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "attention_bench: %s\n", error.what());
    return 1;
}
