// Attention on the CPU: GFLOP/s forward and backward, against a matrix product in the same run, and scratch
// bytes.
//   gradtile_attention_bench [--threads=1,2] [--rounds=5] [--dtype=f32,bf16] [--only=NAME]
//   [--kernels=avx2-f32]
//                            [--large] [--cpu-time]
// FLOPs: forward 4 B H S^2 D (half under a causal mask), backward 2.5 times that. The best of the rounds
// counts, since the machine may be shared; cases and dtypes take turns inside a round, so that noise hits all
// alike.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/attention/attention.h>
#include <gradtile/attention/flash_f32.h>
#include <gradtile/core/gemm.h>
#include <gradtile/core/random.h>

namespace {

using namespace gradtile;

struct Case {
    const char* name;
    std::int64_t batch, heads, length, head_dim;
    bool causal;
};
constexpr Case cases[] = {
    {"B1_H12_S1024_D64_causal", 1, 12, 1024, 64, true}, {"B1_H12_S4096_D64_causal", 1, 12, 4096, 64, true},
    {"B1_H1_S16384_D64", 1, 1, 16384, 64, false},       {"B12_H4_S64_D32_causal", 12, 4, 64, 32, true},
    {"B16_H6_S256_D64_causal", 16, 6, 256, 64, true},
};
constexpr Case large_cases[] = {{"B1_H1_S65536_D16_causal", 1, 1, 65536, 16, true}};

struct Settings {
    std::vector<std::string> threads{"1", "2"}, dtypes{"f32", "bf16"};
    std::string only;
    int rounds = 5;
    bool large = false;
};
bool counts_cpu_time = false;

double now() {
    timespec time;
    clock_gettime(counts_cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class Work>
double seconds(Work&& work) {
    const double begin = now();
    work();
    return now() - begin;
}

struct Times {
    double forward = 1e30, backward = 1e30;
};

double forward_flops(const Case& c) {
    const double all = 4.0 * static_cast<double>(c.batch * c.heads * c.head_dim) *
                       static_cast<double>(c.length) * static_cast<double>(c.length);
    return c.causal ? all / 2 : all;
}

/// One timing of both passes; short cases repeat until a timing is long enough to trust.
Times measure(const Context& ctx, const Case& c, DType dtype) {
    const auto [name, batch, heads, length, head_dim, causal] = c;
    // Views of one packed projection, as multi-head attention passes them.
    const Tensor qkv = randn(ctx, {batch, length, 3 * heads, head_dim}, dtype, Seed{1});
    const Tensor d_qkv = empty_like(ctx, qkv);
    const Tensor d_o = randn(ctx, {batch, length, heads, head_dim}, dtype, Seed{2});
    const auto part = [&](const Tensor& packed, int i) { return packed.slice(2, i * heads, heads); };
    const attention::Options options{.causal = causal};
    attention::Saved saved;
    const auto forward = [&] {
        attention::forward(ctx, part(qkv, 0), part(qkv, 1), part(qkv, 2), options, saved);
    };
    const auto backward = [&] {
        attention::backward(ctx, d_o, options, saved,
                            {.q = part(d_qkv, 0), .k = part(d_qkv, 1), .v = part(d_qkv, 2)});
    };
    forward();
    backward();
    const int repeats = std::max(1, static_cast<int>(1e9 / forward_flops(c)));
    const auto repeat = [&](auto&& work) {
        return seconds([&] {
                   for (int i = 0; i < repeats; ++i) work();
               }) /
               repeats;
    };
    return {.forward = repeat(forward), .backward = repeat(backward)};
}

/// Bytes that a pass needs beyond inputs and outputs, from a dry run.
double scratch_megabytes(const Context& ctx, const Case& c, DType dtype, bool backward) {
    const auto arena = Arena::for_planning(Device::cpu());
    const Context plan = ctx.plan(arena);
    const Shape shape{c.batch, c.length, c.heads, c.head_dim};
    const Tensor q = empty(plan, shape, dtype), k = empty(plan, shape, dtype), v = empty(plan, shape, dtype);
    const Tensor o = empty(plan, shape, dtype);
    attention::Saved saved;
    const attention::Options options{.causal = c.causal};
    if (backward) {
        attention::forward(plan, q, k, v, options, saved, o);
        const attention::Gradients into{empty(plan, shape, dtype), empty(plan, shape, dtype),
                                        empty(plan, shape, dtype)};
        arena->reset_peak();
        const std::size_t before = arena->peak_bytes();
        attention::backward(plan, o, options, saved, into);
        return static_cast<double>(arena->peak_bytes() - before) * 1e-6;
    }
    arena->reset_peak();
    const std::size_t before = arena->peak_bytes();
    attention::forward(plan, q, k, v, options, saved, o);
    return static_cast<double>(arena->peak_bytes() - before - saved.lse.bytes()) * 1e-6;
}

double gemm_gflops(const Context& ctx, DType dtype) {
    constexpr std::int64_t n = 2048;
    static std::map<DType, Tensor> inputs;
    Tensor& a = inputs[dtype];
    if (!a.defined()) a = randn(ctx, {n, n}, dtype, Seed{1});
    const Tensor c = empty(ctx, {n, n}, DType::f32);
    return 2e-9 * n * n * n / seconds([&] { gemm(ctx, c, a, a); });
}

std::vector<std::string> split(std::string_view list) {
    std::vector<std::string> items;
    std::istringstream in{std::string(list)};
    for (std::string item; std::getline(in, item, ',');) items.push_back(item);
    return items;
}

Settings parse(int argc, char** argv) {
    Settings settings;
    for (int i = 1; i < argc; ++i) {
        const std::string_view argument = argv[i];
        const std::size_t equals = argument.find('=');
        const std::string_view flag = argument.substr(0, equals);
        const std::string value(equals == std::string_view::npos ? "" : argument.substr(equals + 1));
        if (flag == "--threads") {
            settings.threads = split(value);
        } else if (flag == "--dtype") {
            settings.dtypes = split(value);
        } else if (flag == "--only") {
            settings.only = value;
        } else if (flag == "--rounds") {
            settings.rounds = std::atoi(value.c_str());
        } else if (flag == "--large") {
            settings.large = true;
        } else if (flag == "--cpu-time") {
            counts_cpu_time = true;
        } else if (flag == "--kernels") {
            const attention::cpu::FlashKernels<float>* chosen = nullptr;
            for (const auto* kernels : attention::cpu::usable_float32_kernels())
                if (value == kernels->name) chosen = kernels;
            check(chosen != nullptr, "attention_bench: no float32 kernels called ", value, " run here");
            attention::cpu::force_float32_kernels(chosen);
        } else {
            throw Error(concat("attention_bench: unknown argument ", argument));
        }
    }
    return settings;
}

void run(const Settings& settings) {
    std::printf("float32 kernels %s, bfloat16 kernels %s, %s\n", attention::cpu::float32_kernels().name,
                attention::cpu::bfloat16_kernels().name, cpu_matrix_library());
    std::vector<Case> selected;
    for (const Case& c : cases)
        if (std::string_view(c.name).find(settings.only) != std::string_view::npos) selected.push_back(c);
    if (settings.large) selected.assign(std::begin(large_cases), std::end(large_cases));

    for (const std::string& threads : settings.threads) {
        const Context ctx(Device::cpu(), std::atoi(threads.c_str()));
        std::map<std::pair<std::string, const char*>, Times> best;
        std::map<std::string, double> gemm_best;
        for (int round = 0; round < settings.rounds; ++round)
            for (const std::string& dtype : settings.dtypes) {
                gemm_best[dtype] = std::max(gemm_best[dtype], gemm_gflops(ctx, dtype_named(dtype)));
                for (const Case& c : selected) {
                    const Times taken = measure(ctx, c, dtype_named(dtype));
                    Times& kept = best[{dtype, c.name}];
                    kept = {std::min(kept.forward, taken.forward), std::min(kept.backward, taken.backward)};
                }
            }
        for (const std::string& dtype : settings.dtypes) {
            std::printf("%s, %s threads: gemm 2048^3 %.0f GFLOP/s\n", dtype.c_str(), threads.c_str(),
                        gemm_best[dtype]);
            std::printf("%-26s %12s %12s %12s %12s %12s %12s\n", "case", "fwd GFLOP/s", "bwd GFLOP/s",
                        "fwd ms", "bwd ms", "fwd MB", "bwd MB");
            for (const Case& c : selected) {
                const Times& t = best[{dtype, c.name}];
                std::printf("%-26s %12.1f %12.1f %12.3f %12.3f %12.3f %12.3f\n", c.name,
                            1e-9 * forward_flops(c) / t.forward, 2.5e-9 * forward_flops(c) / t.backward,
                            1e3 * t.forward, 1e3 * t.backward,
                            scratch_megabytes(ctx, c, dtype_named(dtype), false),
                            scratch_megabytes(ctx, c, dtype_named(dtype), true));
            }
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run(parse(argc, argv));
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
