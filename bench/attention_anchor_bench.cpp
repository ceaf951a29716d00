// Attention on the GPU: milliseconds and TFLOP/s of forward and backward, and the speedup over PyTorch.
//
//     python3 bench/attention_anchor.py [--dtype f32] > anchor.txt     # on the same machine, just before
//     attention_anchor_bench [--anchor anchor.txt] [--dtype f32] [--case 16,16,1024,64,1 ..] [--layout bhsd]
//     [--rounds 9] [--deterministic]
//
// A case is batch, heads, length, head dim, causal and perhaps V's head dim, if it differs. FLOPs: 2 B H S^2
// (Dqk + Dv) forward, half of it under a causal mask; backward 2 B H S^2 (3 Dqk + 2 Dv). Times are medians of
// single calls, measured with CUDA events.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <CLI/CLI.hpp>

#include <gradtile/attention/attention.h>
#include <gradtile/core/internal/cuda_check.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

using namespace gradtile;
using gradtile::cuda::cuda_check;

namespace {

struct Case {
    std::int64_t batch = 16, heads = 16, length = 1024, head_dim = 64, v_dim = 64;
    bool causal = true;

    static Case parse(const std::string& text) {
        Case c;
        std::istringstream in(text);
        char comma = 0;
        in >> c.batch >> comma >> c.heads >> comma >> c.length >> comma >> c.head_dim >> comma >> c.causal;
        check(!in.fail(), "--case: '", text, "'; expected batch,heads,length,head_dim,causal[,v_dim]");
        c.v_dim = c.head_dim;
        if (in >> comma) {
            in >> c.v_dim;
            check(!in.fail(), "--case: '", text, "'; expected batch,heads,length,head_dim,causal[,v_dim]");
        }
        return c;
    }
    std::string name() const {
        std::ostringstream text;
        text << 'B' << batch << " H" << heads << " S" << length << " D" << head_dim;
        if (v_dim != head_dim) text << '/' << v_dim;
        text << (causal ? " causal" : " full");
        return text.str();
    }
    double forward_flops() const { return flops_of(head_dim + v_dim); }
    double backward_flops() const { return flops_of(3 * head_dim + 2 * v_dim); }

  private:
    /// FLOPs of products [S, S] x [S, .] whose results have `columns` columns in total.
    double flops_of(std::int64_t columns) const {
        const double all = 2.0 * static_cast<double>(batch * heads * columns) * static_cast<double>(length) *
                           static_cast<double>(length);
        return causal ? all / 2 : all;
    }
};

struct Settings {
    std::string dtype = "bf16", layout = "bhsd", anchor;
    std::vector<std::string> cases;
    int rounds = 9;
    bool deterministic = false;
};

struct Milliseconds {
    double forward, backward;
};

/// The times of another implementation for a case.
struct Anchor {
    std::string implementation;
    Milliseconds time;
};
struct AnchoredCase {
    Case timed_case;
    std::vector<Anchor> anchors;
};

/// Lines "16,16,1024,64,1 | flash <forward ms> <backward ms> | ...".
std::vector<AnchoredCase> read_anchors(const std::string& path) {
    std::vector<AnchoredCase> all;
    std::ifstream file(path);
    check(file.good(), "cannot read ", path);
    for (std::string line; std::getline(file, line);) {
        const std::size_t bar = line.find(" |");
        if (bar == std::string::npos) continue;
        AnchoredCase c{.timed_case = Case::parse(line.substr(0, bar)), .anchors = {}};
        std::istringstream rest(line.substr(bar));
        for (std::string word; rest >> word;) {
            Anchor a;
            rest >> a.implementation >> a.time.forward >> a.time.backward;
            check(word == "|" && !rest.fail(), path, ": not an anchor's line: ", line);
            c.anchors.push_back(a);
        }
        all.push_back(c);
    }
    return all;
}

/// The cases given on the command line, or those of the anchor file, with the anchor's times.
std::vector<AnchoredCase> cases_of(const Settings& settings) {
    std::vector<AnchoredCase> known;
    if (!settings.anchor.empty()) known = read_anchors(settings.anchor);
    if (settings.cases.empty()) return known.empty() ? std::vector<AnchoredCase>(1) : known;
    std::vector<AnchoredCase> all;
    for (const std::string& text : settings.cases) {
        const Case timed_case = Case::parse(text);
        const auto found = std::find_if(known.begin(), known.end(), [&](const AnchoredCase& c) {
            return c.timed_case.name() == timed_case.name();
        });
        all.push_back(found == known.end() ? AnchoredCase{.timed_case = timed_case, .anchors = {}} : *found);
    }
    return all;
}

/// A [B, S, H, D] view of memory in the chosen layout. The numbers are drawn on the CPU and repeated for each
/// head, which is fast and does not change the amount of memory traffic.
Tensor operand(const Context& ctx, const Settings& settings, const Case& c, std::int64_t columns,
               std::uint64_t seed) {
    const DType dtype = dtype_named(settings.dtype);
    const Tensor head = randn(ctx, {1, c.length, 1, columns}, dtype, Seed{seed});
    const Tensor all = settings.layout == "bshd"
                           ? empty(ctx, {c.batch, c.length, c.heads, columns}, dtype)
                           : empty(ctx, {c.batch, c.heads, c.length, columns}, dtype).transpose(1, 2);
    copy(ctx, all, head.expand(all.shape()));
    return all;
}

class Event {
  public:
    Event() { cuda_check(cudaEventCreate(&event_)); }
    ~Event() { cudaEventDestroy(event_); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    void record(const Context& ctx) const {
        cuda_check(cudaEventRecord(event_, static_cast<cudaStream_t>(ctx.stream())));
    }
    double milliseconds_since(const Event& begin) const {
        float result = 0;
        cuda_check(cudaEventSynchronize(event_));
        cuda_check(cudaEventElapsedTime(&result, begin.event_, event_));
        return result;
    }

  private:
    cudaEvent_t event_ = nullptr;
};

double median_milliseconds(const Context& ctx, int rounds, const std::function<void()>& work) {
    const Event begin, end;
    std::vector<double> times;
    for (int i = -2; i < rounds; ++i) {  // two warm-up rounds
        begin.record(ctx);
        work();
        end.record(ctx);
        const double time = end.milliseconds_since(begin);
        if (i >= 0) times.push_back(time);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

Milliseconds measure(const Context& ctx, const Settings& settings, const Case& c) {
    const auto qk_tensor = [&](std::uint64_t seed) { return operand(ctx, settings, c, c.head_dim, seed); };
    const auto v_tensor = [&](std::uint64_t seed) { return operand(ctx, settings, c, c.v_dim, seed); };
    const Tensor q = qk_tensor(1), k = qk_tensor(2), v = v_tensor(3), d_o = v_tensor(4), o = v_tensor(5);
    const attention::Gradients gradients{.q = qk_tensor(6), .k = qk_tensor(7), .v = v_tensor(8)};
    const attention::Options options{.causal = c.causal, .deterministic = settings.deterministic};
    attention::Saved saved;
    const double forward = median_milliseconds(ctx, settings.rounds,
                                               [&] { attention::forward(ctx, q, k, v, options, saved, o); });
    const double backward = median_milliseconds(
        ctx, settings.rounds, [&] { attention::backward(ctx, d_o, options, saved, gradients); });
    return {forward, backward};
}

/// Speedups over one implementation.
class Ratios {
  public:
    void add(double x) {
        log_sum_ += std::log(x);
        least_ = std::min(least_, x);
        ++count_;
    }
    double geometric_mean() const { return std::exp(log_sum_ / count_); }
    double least() const { return least_; }

  private:
    double log_sum_ = 0, least_ = INFINITY;
    int count_ = 0;
};

void run(const Settings& settings) {
    const Context gpu(Device::cuda(0));
    // Uses an arena that is allocated once, as in training.
    const Context ctx = gpu.with_allocator(std::make_shared<Arena>(Device::cuda(0), std::size_t{4} << 30));
    std::printf("%s, layout %s%s: ms, TFLOP/s (times as fast as)\n", settings.dtype.c_str(),
                settings.layout.c_str(), settings.deterministic ? ", deterministic" : "");
    std::map<std::string, std::pair<Ratios, Ratios>> ratios;
    for (const auto& [c, anchors] : cases_of(settings)) {
        const Milliseconds time = measure(ctx, settings, c);
        std::printf("%-32s forward %7.3f %4.0f  backward %7.3f %4.0f", c.name().c_str(), time.forward,
                    1e-9 * c.forward_flops() / time.forward, time.backward,
                    1e-9 * c.backward_flops() / time.backward);
        for (const Anchor& a : anchors) {
            const double forward = a.time.forward / time.forward, backward = a.time.backward / time.backward;
            std::printf("  (%s %.2f, %.2f)", a.implementation.c_str(), forward, backward);
            ratios[a.implementation].first.add(forward);
            ratios[a.implementation].second.add(backward);
        }
        std::printf("\n");
        std::fflush(stdout);
    }
    for (const auto& [implementation, of] : ratios)
        std::printf("geometric mean (least) over %s: forward %.3f (%.2f), backward %.3f (%.2f)\n",
                    implementation.c_str(), of.first.geometric_mean(), of.first.least(),
                    of.second.geometric_mean(), of.second.least());
}

}  // namespace

int main(int argc, char** argv) try {
    CLI::App app{"Times attention forward and backward on the GPU"};
    Settings settings;
    app.add_option("--dtype", settings.dtype, "f64, f32, bf16, f16")->capture_default_str();
    app.add_option(
        "--case", settings.cases,
        "batch,heads,length,head_dim,causal[,v_dim] (default: those of the anchor, or 16,16,1024,64,1)");
    app.add_option("--layout", settings.layout, "memory order: bhsd as PyTorch's SDPA, or bshd")
        ->check(CLI::IsMember({"bhsd", "bshd"}))
        ->capture_default_str();
    app.add_option("--rounds", settings.rounds, "number of timings per pass")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--anchor", settings.anchor, "output file of bench/attention_anchor.py");
    app.add_flag("--deterministic", settings.deterministic, "bit-identical gradients in every run");
    CLI11_PARSE(app, argc, argv);
    run(settings);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "attention_anchor_bench: %s\n", error.what());
    return 1;
}
