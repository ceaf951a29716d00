// Attention on the GPU: TFLOP/s forward and backward beside PyTorch's FlashAttention-2 and cuDNN.
//
//     python3 bench/attention_anchor.py > anchor.txt     # on the same machine, just before
//     attention_anchor_bench [--anchor anchor.txt] [--dtype bf16] [--layout bhsd] [--rounds 9]
//     [--deterministic]
//
// FLOPs: 4 B H S^2 D forward, half of it under a causal mask; backward 2.5 times as many. Medians over CUDA
// events around one call each.
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
#include <gradtile/core/cuda_check.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

using namespace gradtile;
using gradtile::cuda::cuda_check;

namespace {

struct Case {
    std::int64_t batch, heads, length, head_dim;
    bool causal;

    /// The key of its line in the anchor's output.
    std::string name() const {
        std::ostringstream text;
        text << 'D' << head_dim << " S" << length << (causal ? " causal" : " full") << " B" << batch << " H"
             << heads;
        return text.str();
    }
    double forward_flops() const {
        const double all = 4.0 * static_cast<double>(batch * heads * head_dim) * static_cast<double>(length) *
                           static_cast<double>(length);
        return causal ? all / 2 : all;
    }
};

/// B S = 16,384 tokens of width 2,048, GPT-2 124M's attention, and heads of 32.
std::vector<Case> cases() {
    struct Line {
        std::int64_t head_dim, length;
        bool causal;
    };
    std::vector<Case> all;
    for (const auto& [d, s, causal] : {Line{64, 512, true},
                                       {64, 1024, false},
                                       {64, 1024, true},
                                       {64, 2048, true},
                                       {64, 4096, true},
                                       {64, 16384, false},
                                       {64, 16384, true},
                                       {128, 512, true},
                                       {128, 1024, false},
                                       {128, 1024, true},
                                       {128, 2048, true},
                                       {128, 4096, true},
                                       {128, 16384, false},
                                       {128, 16384, true},
                                       {256, 4096, false},
                                       {256, 16384, true}})
        all.push_back({16384 / s, 2048 / d, s, d, causal});
    all.push_back({64, 12, 1024, 64, true});
    all.push_back({4, 48, 4096, 32, false});
    all.push_back({4, 48, 4096, 32, true});
    return all;
}

struct Settings {
    std::string dtype = "bf16", layout = "bhsd", anchor;
    int rounds = 9;
    bool deterministic = false;
};

/// TFLOP/s of the two passes.
struct Speed {
    double forward, backward;
};
struct Anchors {
    Speed flash, cudnn;
};

/// Lines "<name of the case> | flash <forward> <backward> | cudnn <forward> <backward>".
std::map<std::string, Anchors> read_anchors(const std::string& path) {
    std::map<std::string, Anchors> anchors;
    if (path.empty()) return anchors;
    std::ifstream file(path);
    check(file.good(), "cannot read ", path);
    for (std::string line; std::getline(file, line);) {
        const std::size_t bar = line.find(" | ");
        if (bar == std::string::npos) continue;
        std::istringstream rest(line.substr(bar));
        std::string word;
        Anchors a{};
        rest >> word >> word >> a.flash.forward >> a.flash.backward >> word >> word >> a.cudnn.forward >>
            a.cudnn.backward;
        check(!rest.fail(), path, ": not an anchor's line: ", line);
        anchors[line.substr(0, bar)] = a;
    }
    return anchors;
}

/// A [B, S, H, D] view of memory in the layout asked for. All heads hold the same numbers, since they come
/// from the CPU; what is read and written is as large as ever.
Tensor operand(const Context& ctx, const Settings& settings, const Case& c, std::uint64_t seed) {
    const DType dtype = dtype_named(settings.dtype);
    const Tensor head = randn(ctx, {1, c.length, 1, c.head_dim}, dtype, Seed{seed});
    const Tensor all = settings.layout == "bshd"
                           ? empty(ctx, {c.batch, c.length, c.heads, c.head_dim}, dtype)
                           : empty(ctx, {c.batch, c.heads, c.length, c.head_dim}, dtype).transpose(1, 2);
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

double median_seconds(const Context& ctx, int rounds, const std::function<void()>& work) {
    const Event begin, end;
    std::vector<double> times;
    for (int i = -2; i < rounds; ++i) {  // two warm up
        begin.record(ctx);
        work();
        end.record(ctx);
        const double time = end.milliseconds_since(begin);
        if (i >= 0) times.push_back(1e-3 * time);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

Speed measure(const Context& ctx, const Settings& settings, const Case& c) {
    const Tensor q = operand(ctx, settings, c, 1), k = operand(ctx, settings, c, 2),
                 v = operand(ctx, settings, c, 3), d_o = operand(ctx, settings, c, 4);
    const Tensor o = operand(ctx, settings, c, 5);
    const attention::Gradients gradients{.q = operand(ctx, settings, c, 6),
                                         .k = operand(ctx, settings, c, 7),
                                         .v = operand(ctx, settings, c, 8)};
    const attention::Options options{.causal = c.causal, .deterministic = settings.deterministic};
    attention::Saved saved;
    const double forward =
        median_seconds(ctx, settings.rounds, [&] { attention::forward(ctx, q, k, v, options, saved, o); });
    const double backward = median_seconds(ctx, settings.rounds,
                                           [&] { attention::backward(ctx, d_o, options, saved, gradients); });
    return {1e-12 * c.forward_flops() / forward, 2.5e-12 * c.forward_flops() / backward};
}

class GeometricMean {
  public:
    void add(double x) {
        sum_ += std::log(x);
        least_ = std::min(least_, x);
        ++count_;
    }
    double mean() const { return std::exp(sum_ / count_); }
    double least() const { return least_; }

  private:
    double sum_ = 0, least_ = INFINITY;
    int count_ = 0;
};

void run(const Settings& settings) {
    const Context gpu(Device::cuda(0));
    // Scratch comes from memory taken once, as in training.
    const Context ctx = gpu.with_allocator(std::make_shared<Arena>(Device::cuda(0), std::size_t{4} << 30));
    const auto anchors = read_anchors(settings.anchor);
    std::printf("%s, layout %s%s, TFLOP/s (ratio to FlashAttention-2, to cuDNN)\n", settings.dtype.c_str(),
                settings.layout.c_str(), settings.deterministic ? ", deterministic" : "");
    GeometricMean forward_flash, backward_flash, forward_cudnn, backward_cudnn;
    for (const Case& c : cases()) {
        const Speed speed = measure(ctx, settings, c);
        std::printf("%-30s forward %4.0f", c.name().c_str(), speed.forward);
        if (const auto found = anchors.find(c.name()); found != anchors.end()) {
            const auto& [flash, cudnn] = found->second;
            std::printf(" (%.2f, %.2f)  backward %4.0f (%.2f, %.2f)\n", speed.forward / flash.forward,
                        speed.forward / cudnn.forward, speed.backward, speed.backward / flash.backward,
                        speed.backward / cudnn.backward);
            forward_flash.add(speed.forward / flash.forward);
            backward_flash.add(speed.backward / flash.backward);
            forward_cudnn.add(speed.forward / cudnn.forward);
            backward_cudnn.add(speed.backward / cudnn.backward);
        } else {
            std::printf("  backward %4.0f\n", speed.backward);
        }
    }
    if (!anchors.empty())
        std::printf(
            "geometric mean (least) over FlashAttention-2: forward %.3f (%.2f), backward %.3f (%.2f); "
            "over cuDNN: forward %.3f (%.2f), backward %.3f (%.2f)\n",
            forward_flash.mean(), forward_flash.least(), backward_flash.mean(), backward_flash.least(),
            forward_cudnn.mean(), forward_cudnn.least(), backward_cudnn.mean(), backward_cudnn.least());
}

}  // namespace

int main(int argc, char** argv) try {
    CLI::App app{"Times attention forward and backward on the GPU"};
    Settings settings;
    app.add_option("--dtype", settings.dtype, "bf16, f16, f32")->capture_default_str();
    app.add_option("--layout", settings.layout, "memory order: bhsd as PyTorch's SDPA, or bshd")
        ->check(CLI::IsMember({"bhsd", "bshd"}))
        ->capture_default_str();
    app.add_option("--rounds", settings.rounds, "timings of every pass")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--anchor", settings.anchor, "what bench/attention_anchor.py printed");
    app.add_flag("--deterministic", settings.deterministic, "gradients that are bit-equal from run to run");
    CLI11_PARSE(app, argc, argv);
    run(settings);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "attention_anchor_bench: %s\n", error.what());
    return 1;
}
