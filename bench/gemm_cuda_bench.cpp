// The matrix products of one training step on a GPU, timed one by one with CUDA events, bfloat16:
//   plain    as a framework's matmul runs them: bfloat16 results, nothing fused
//   trained  as gradtile runs them: bias and GELU inside, float32 weight gradients that accumulate, the head
//            in chunks
// Beside them what other paddings of the vocabulary would cost.
//   gemm_cuda_bench [gpt2-124m | gpt2-350m | char]...
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <gradtile/core/cuda_check.h>
#include <gradtile/core/gemm_lt.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

namespace {

using namespace gradtile;
using cuda::cuda_check;
using cuda::GemmFusion;

struct Model {
    const char* name;
    std::int64_t layers, width, tokens, vocabulary;
};
constexpr Model models[] = {
    {"gpt2-124m", 12, 768, 65536, 50257}, {"gpt2-350m", 24, 1024, 32768, 50257}, {"char", 6, 384, 16384, 65}};

class Bench {
  public:
    /// Median over batches of launches, each batch at least a millisecond long.
    double milliseconds(const std::function<void()>& work) const {
        for (int i = 0; i < 3; ++i) work();  // the first chooses the algorithm
        const int launches = std::clamp(static_cast<int>(1.0 / timed(work, 1)), 1, 100);
        std::vector<double> samples;
        for (int i = 0; i < 9; ++i) samples.push_back(timed(work, launches));
        std::nth_element(samples.begin(), samples.begin() + 4, samples.end());
        return samples[4];
    }

    /// Normal numbers: what a GPU draws, and so its clock, depends on the data. Repeats after 16 Mi elements.
    Tensor random(std::int64_t rows, std::int64_t columns, DType type = DType::bf16,
                  std::int64_t row_distance = 0) const {
        const Tensor x = empty(ctx, {rows, std::max(columns, row_distance)}, type);
        const Tensor flat = x.reshape({x.elements()});
        for (std::int64_t begin = 0; begin < flat.size(0); begin += pool_.size(0)) {
            const std::int64_t length = std::min(pool_.size(0), flat.size(0) - begin);
            copy(ctx, flat.slice(0, begin, length), pool_.slice(0, 0, length));
        }
        return x.slice(1, 0, columns);
    }

    const Context ctx{Device::cuda(0), 0};

  private:
    double timed(const std::function<void()>& work, int launches) const {
        const auto stream = static_cast<cudaStream_t>(ctx.stream());
        cudaEvent_t start = nullptr, end = nullptr;
        float milliseconds = 0;
        cuda_check(cudaEventCreate(&start));
        cuda_check(cudaEventCreate(&end));
        cuda_check(cudaEventRecord(start, stream));
        for (int i = 0; i < launches; ++i) work();
        cuda_check(cudaEventRecord(end, stream));
        cuda_check(cudaEventSynchronize(end));
        cuda_check(cudaEventElapsedTime(&milliseconds, start, end));
        cuda_check(cudaEventDestroy(start));
        cuda_check(cudaEventDestroy(end));
        return std::max(1e-4, static_cast<double>(milliseconds) / launches);
    }

    const Tensor pool_ = randn(ctx, {std::int64_t{1} << 24}, DType::bf16, Seed{1});
};

struct Sum {
    double plain = 0, trained = 0, flops = 0;
};

void print_line(const char* name, const char* pass, double flops, double plain, double trained,
                double times) {
    std::printf("%-8s %-16s plain %8.3f ms %4.0f TF   trained %8.3f ms %4.0f TF   x%.1f\n", name, pass, plain,
                flops / plain / 1e9, trained, flops / trained / 1e9, times);
    std::fflush(stdout);
}

enum class Activation { none, gelu_after, gelu_before };

/// Forward, data gradient and weight gradient of one Linear in -> out over `tokens` rows.
Sum linear(const Bench& bench, const char* name, std::int64_t tokens, std::int64_t out, std::int64_t in,
           Activation activation, double times) {
    const Context& ctx = bench.ctx;
    const Tensor x = bench.random(tokens, in), w = bench.random(out, in), y = bench.random(tokens, out);
    const Tensor bias = bench.random(1, out).reshape({out});
    const Tensor dx = empty_like(ctx, x), dw = empty_like(ctx, w);
    const Tensor dw_sum = zeros(ctx, {out, in}, DType::f32);
    const Tensor hidden = bench.random(tokens, activation == Activation::gelu_after ? out : in);
    const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(out * in);

    const double forward = bench.milliseconds([&] { gemm(ctx, y, x, w, {.trans_b = true}); });
    const double forward_trained = bench.milliseconds([&] {
        const GemmOptions options{.trans_b = true, .bias = bias};
        GemmFusion fusion;
        if (activation == Activation::gelu_after)
            fusion = {.gelu = GemmFusion::Gelu::forward, .hidden = hidden};
        check(cuda::gemm_lt(ctx, y, x, w, options, fusion), name, " forward is refused");
    });
    print_line(name, activation == Activation::gelu_after ? "forward+gelu" : "forward", flops, forward,
               forward_trained, times);
    const Tensor dy = bench.random(tokens, out);
    const double data = bench.milliseconds([&] { gemm(ctx, dx, dy, w); });
    const double data_trained = bench.milliseconds([&] {
        GemmFusion fusion;
        if (activation == Activation::gelu_before)
            fusion = {.gelu = GemmFusion::Gelu::backward, .hidden = hidden};
        check(cuda::gemm_lt(ctx, dx, dy, w, {}, fusion), name, " data gradient is refused");
    });
    print_line(name, activation == Activation::gelu_before ? "data grad+dgelu" : "data grad", flops, data,
               data_trained, times);
    const GemmOptions onto{.trans_a = true, .accumulate = true};
    const double weight = bench.milliseconds([&] { gemm(ctx, dw, dy, x, {.trans_a = true}); });
    const double weight_trained = bench.milliseconds([&] { gemm(ctx, dw_sum, dy, x, onto); });
    print_line(name, "weight grad", flops, weight, weight_trained, times);

    return {times * (forward + data + weight), times * (forward_trained + data_trained + weight_trained),
            3 * times * flops};
}

/// The three products of `rows` rows of the vocabulary's head.
double head_chunk(const Bench& bench, std::int64_t rows, std::int64_t vocabulary, std::int64_t width) {
    const Context& ctx = bench.ctx;
    const Tensor x = bench.random(rows, width), w = bench.random(vocabulary, width);
    const Tensor dx = empty_like(ctx, x), dw = zeros(ctx, {vocabulary, width}, DType::f32);
    const Tensor logits = bench.random(rows, vocabulary), d_logits = bench.random(rows, vocabulary);
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(vocabulary * width);
    const double forward = bench.milliseconds([&] { gemm(ctx, logits, x, w, {.trans_b = true}); });
    const double data = bench.milliseconds([&] { gemm(ctx, dx, d_logits, w); });
    const double weight =
        bench.milliseconds([&] { gemm(ctx, dw, d_logits, x, {.trans_a = true, .accumulate = true}); });
    std::printf(
        "head     %lld rows, V %lld: logits %.3f ms %.0f TF, data grad %.3f ms %.0f TF, weight grad %.3f "
        "ms %.0f TF\n",
        static_cast<long long>(rows), static_cast<long long>(vocabulary), forward, flops / forward / 1e9,
        data, flops / data / 1e9, weight, flops / weight / 1e9);
    std::fflush(stdout);
    return forward + data + weight;
}

void step(const Bench& bench, const Model& model) {
    const auto [name, layers, width, tokens, vocabulary] = model;
    const double times = static_cast<double>(layers);
    std::printf("\n%s: %lld layers, width %lld, %lld tokens\n", name, static_cast<long long>(layers),
                static_cast<long long>(width), static_cast<long long>(tokens));
    Sum sum;
    const auto add = [&](const Sum& part) {
        sum = {sum.plain + part.plain, sum.trained + part.trained, sum.flops + part.flops};
    };
    add(linear(bench, "qkv", tokens, 3 * width, width, Activation::none, times));
    add(linear(bench, "proj", tokens, width, width, Activation::none, times));
    add(linear(bench, "fc", tokens, 4 * width, width, Activation::gelu_after, times));
    add(linear(bench, "fcproj", tokens, width, 4 * width, Activation::gelu_before, times));

    // plain: the whole head at once, the vocabulary padded, bfloat16 logits.
    const std::int64_t padded = (vocabulary + 63) / 64 * 64;
    Sum head{.flops = 6.0 * static_cast<double>(tokens) * static_cast<double>(vocabulary * width)};
    {
        const Context& ctx = bench.ctx;
        const Tensor x = bench.random(tokens, width), w = bench.random(padded, width);
        const Tensor logits = bench.random(tokens, padded), dx = empty_like(ctx, x), dw = empty_like(ctx, w);
        head.plain = bench.milliseconds([&] { gemm(ctx, logits, x, w, {.trans_b = true}); }) +
                     bench.milliseconds([&] { gemm(ctx, dx, logits, w); }) +
                     bench.milliseconds([&] { gemm(ctx, dw, logits, x, {.trans_a = true}); });
    }
    const std::int64_t chunk =
        std::min(tokens, (std::int64_t{1} << 30) / (2 * padded) / 256 * 256);  // cross_entropy_head.cpp
    const double chunks = static_cast<double>(tokens) / static_cast<double>(chunk);
    head.trained = chunks * head_chunk(bench, chunk, padded, width);
    std::printf("head     plain %.3f ms, trained %.3f ms in %.1f chunks\n", head.plain, head.trained, chunks);
    add(head);
    std::printf("%s: sum plain %.2f ms %.0f TFLOP/s, trained %.2f ms %.0f TFLOP/s\n", name, sum.plain,
                sum.flops / sum.plain / 1e9, sum.trained, sum.flops / sum.trained / 1e9);
    if (vocabulary < 1000) return;
    for (const std::int64_t multiple : {1, 2, 8, 16})
        head_chunk(bench, chunk, (vocabulary + multiple - 1) / multiple * multiple, width);
    head_chunk(bench, 512, padded, width);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const Bench bench;
        for (const Model& model : models)
            if (argc < 2 || std::find(argv + 1, argv + argc, std::string(model.name)) != argv + argc)
                step(bench, model);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "gemm_cuda_bench: %s\n", error.what());
        return 1;
    }
    return 0;
}
