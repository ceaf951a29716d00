// Bandwidth of the memory-bound layers on a GPU, next to a copy between two places of its memory in the same
// run:
//   build/release/bench/layers_cuda_bench [--runs 20] [--filter norm]
// Shapes are GPT-2's: 65,536 tokens, 768 wide, 3072 hidden, vocabulary 50257, bfloat16. Bytes count every
// tensor that is read or written once; times are medians, by CUDA events, of runs that follow one another.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <gradtile/core/cuda_check.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/cross_entropy_backend.h>
#include <gradtile/layers/dropout.h>
#include <gradtile/layers/embedding.h>
#include <gradtile/layers/gelu.h>
#include <gradtile/layers/layer_norm.h>
#include <gradtile/layers/linear_backend.h>
#include <gradtile/layers/rms_norm.h>
#include <gradtile/layers/rope.h>
#include <gradtile/layers/swiglu.h>

namespace gradtile {
namespace {

constexpr std::int64_t batch = 64, context = 1024, width = 768, hidden = 4 * width, heads = 12;
constexpr std::int64_t vocabulary = 50257, chunk = 10496;
constexpr DType dtype = DType::bf16;

class Bench {
  public:
    Bench(int runs, std::string filter)
        : ctx_(Context(Device::cuda(0), 1)
                   .with_allocator(std::make_shared<Arena>(Device::cuda(0), std::size_t{12} << 30))),
          runs_(runs),
          filter_(std::move(filter)) {
        cuda::cuda_check(cudaEventCreate(&start_));
        cuda::cuda_check(cudaEventCreate(&stop_));
        std::printf("%-36s %10s %10s %9s %8s\n", "", "MB", "us", "GB/s", "of copy");
    }
    ~Bench() {
        (void)cudaEventDestroy(start_);
        (void)cudaEventDestroy(stop_);
    }
    Bench(const Bench&) = delete;
    Bench& operator=(const Bench&) = delete;

    const Context& ctx() const { return ctx_; }
    bool wants(const std::string& name) const { return name.find(filter_) != std::string::npos; }

    /// Times body, which moves so many bytes.
    void measure(const std::string& name, std::size_t bytes, const std::function<void()>& body) {
        const double us = median_us(body);
        const double rate = static_cast<double>(bytes) / us * 1e-3;
        if (copy_rate_ == 0) copy_rate_ = rate;
        std::printf("%-36s %10.1f %10.1f %9.0f %7.0f%%\n", name.c_str(), static_cast<double>(bytes) * 1e-6,
                    us, rate, 100 * rate / copy_rate_);
        std::fflush(stdout);
    }

  private:
    double median_us(const std::function<void()>& body) {
        const auto stream = static_cast<cudaStream_t>(ctx_.stream());
        for (int i = 0; i < 3; ++i) body();
        std::vector<double> times;
        for (int i = 0; i < runs_; ++i) {
            cuda::cuda_check(cudaEventRecord(start_, stream));
            body();
            cuda::cuda_check(cudaEventRecord(stop_, stream));
            cuda::cuda_check(cudaEventSynchronize(stop_));
            float ms = 0;
            cuda::cuda_check(cudaEventElapsedTime(&ms, start_, stop_));
            times.push_back(1e3 * static_cast<double>(ms));
        }
        std::nth_element(times.begin(), times.begin() + runs_ / 2, times.end());
        return times[static_cast<std::size_t>(runs_ / 2)];
    }

    Context ctx_;
    int runs_;
    std::string filter_;
    cudaEvent_t start_{}, stop_{};
    double copy_rate_ = 0;
};

/// Random enough for timing, without drawing hundreds of millions of numbers on the host.
Tensor numbers(const Context& ctx, const Shape& shape, DType type = dtype) {
    const Tensor few = randn(ctx, {1 << 16}, type, Seed{1});
    const Tensor x = empty(ctx, {(shape.elements() + few.size(0) - 1) / few.size(0), few.size(0)}, type);
    copy(ctx, x, few.expand(x.shape()));
    return x.reshape({x.elements()}).slice(0, 0, shape.elements()).reshape(shape);
}

void copy_anchor(Bench& bench) {
    const Tensor x = numbers(bench.ctx(), {batch, context, hidden}), y = empty_like(bench.ctx(), x);
    bench.measure("copy (cudaMemcpyAsync)", 2 * x.bytes(), [&] {
        cuda::cuda_check(cudaMemcpyAsync(y.raw_data(), x.raw_data(), x.bytes(), cudaMemcpyDeviceToDevice,
                                         static_cast<cudaStream_t>(bench.ctx().stream())));
    });
}

/// Forward and backward of a layer on x.
template <class Layer>
void both_ways(Bench& bench, const std::string& name, const Layer& layer, const Tensor& x) {
    const Context& ctx = bench.ctx();
    typename Layer::Saved saved;
    const Tensor y = layer.forward(ctx, x, saved), dy = numbers(ctx, y.shape());
    bench.measure(name + " forward", x.bytes() + y.bytes(), [&] {
        typename Layer::Saved again;
        layer.forward(ctx, x, again);
    });
    bench.measure(name + " backward", 2 * x.bytes() + dy.bytes(), [&] { layer.backward(ctx, dy, saved); });
}

void norms(Bench& bench) {
    const Context& ctx = bench.ctx();
    ParameterStore store;
    const LayerNorm layer_norm(store, "a", width, true), medium(store, "m", 1024, true),
        wide(store, "w", 4096, true);
    const RMSNorm rms_norm(store, "b", width), of_heads(store, "c", width / heads);
    store.allocate(ctx, dtype);
    store.initialize(ctx, Seed{1});
    const Tensor x = numbers(ctx, {batch, context, width});
    both_ways(bench, "layer_norm", layer_norm, x);
    LayerNorm::Saved saved;
    const Tensor dy = layer_norm.forward(ctx, x, saved), dx = numbers(ctx, x.shape());
    bench.measure("layer_norm backward_add", 4 * x.bytes(),
                  [&] { layer_norm.backward_add(ctx, dy, saved, dx); });
    const Tensor branch = numbers(ctx, x.shape());
    for (const double p : {0.0, 0.1})
        bench.measure(p > 0 ? "residual, dropout, layer_norm" : "residual, layer_norm", 4 * x.bytes(), [&] {
            LayerNorm::Saved again;
            layer_norm.forward(ctx, Residual{x, branch, {.p = p}, DropoutKey::of_step(1, 2, 3)}, again);
        });
    both_ways(bench, "layer_norm 1024 wide", medium, numbers(ctx, {48, context, 1024}));
    both_ways(bench, "layer_norm 4096 wide", wide, numbers(ctx, {16, context, 4096}));
    both_ways(bench, "rms_norm", rms_norm, x);
    both_ways(bench, "rms_norm of heads (64)", of_heads, x.reshape({batch, context, heads, width / heads}));
}

void activations(Bench& bench) {
    const Context& ctx = bench.ctx();
    const Tensor x = numbers(ctx, {batch, context, hidden});
    both_ways(bench, "gelu (tanh)", Gelu{}, x);
    both_ways(bench, "gelu (exact)", Gelu{Gelu::Form::exact}, x);
    both_ways(bench, "swiglu", SwiGlu{}, numbers(ctx, {batch, context, 2 * 2048}));
}

void residuals(Bench& bench) {
    const Context& ctx = bench.ctx();
    const Tensor x = numbers(ctx, {batch, context, width}), branch = numbers(ctx, x.shape());
    const DropoutKey key = DropoutKey::of_step(1, 2, 3);
    Dropout::Saved saved;
    bench.measure("dropout", 2 * x.bytes(), [&] { Dropout{0.1}.forward(ctx, x, key, saved); });
    bench.measure("residual", 3 * x.bytes(), [&] { Dropout{0.0}.add_residual(ctx, x, branch, key, saved); });
    bench.measure("residual, dropout", 3 * x.bytes(),
                  [&] { Dropout{0.1}.add_residual(ctx, x, branch, key, saved); });
}

/// Tokens with the frequencies of a natural text (proportional to 1 / rank), or all equally frequent.
std::vector<std::int32_t> tokens(bool natural) {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < batch * context; ++i) {
        const auto draw = static_cast<double>(mix_seed(5, static_cast<std::uint64_t>(i)) >> 11) * 0x1p-53;
        const double id = natural ? std::pow(static_cast<double>(vocabulary), draw) - 1
                                  : draw * static_cast<double>(vocabulary);
        ids.push_back(static_cast<std::int32_t>(id));
    }
    return ids;
}

void embeddings(Bench& bench) {
    const Context& ctx = bench.ctx();
    ParameterStore store;
    const Embedding embedding(store, "a", vocabulary, width);
    const PositionEmbedding positions(store, "b", context, width);
    store.allocate(ctx, dtype);
    const Tensor dy = numbers(ctx, {batch, context, width});
    for (const bool natural : {true, false}) {
        const auto values = tokens(natural);
        const Tensor ids = from_host(ctx, values, {batch, context});
        std::vector<bool> used(vocabulary);
        for (const std::int32_t id : values) used[static_cast<std::size_t>(id)] = true;
        const auto rows = static_cast<std::size_t>(std::count(used.begin(), used.end(), true));
        const std::string kind = natural ? ", natural text" : ", uniform tokens";
        Embedding::Saved saved;
        bench.measure("embedding forward" + kind, dy.bytes() + rows * width * size_of(dtype),
                      [&] { embedding.forward(ctx, ids, saved); });
        bench.measure("embedding backward" + kind, dy.bytes() + 2 * rows * width * size_of(DType::f32),
                      [&] { embedding.backward(ctx, dy, saved); });
    }
    PositionEmbedding::Saved saved;
    bench.measure("position embedding forward", 2 * dy.bytes(), [&] { positions.forward(ctx, dy, saved); });
    bench.measure("position embedding backward", dy.bytes(), [&] { positions.backward(ctx, dy, saved); });
}

void rope(Bench& bench) {
    const Context& ctx = bench.ctx();
    const Rope rotation(width / heads, context);
    const Tensor packed = numbers(ctx, {batch, context, 3 * width});
    const Tensor queries_keys =
        packed.slice(2, 0, 2 * width).reshape({batch, context, 2 * heads, width / heads});
    bench.measure("rope", 2 * queries_keys.bytes(), [&] { rotation.forward(ctx, queries_keys); });
}

void cross_entropy(Bench& bench) {
    const Context& ctx = bench.ctx();
    // Two of GPT-2's rows fit a processor's shared memory, one of 100,000 logits; Llama 3's do not fit; 65
    // are characters. Training has them in bfloat16, gradients in their place; evaluation in float32.
    for (const std::int64_t classes :
         {vocabulary, std::int64_t{100000}, std::int64_t{128256}, std::int64_t{65}}) {
        const std::int64_t rows = classes == 65 ? batch * context : chunk, padded = (classes + 63) / 64 * 64;
        const Tensor logits = numbers(ctx, {rows, padded}).slice(1, 0, classes);
        const Tensor wide = numbers(ctx, {rows, padded}, DType::f32).slice(1, 0, classes);
        const Tensor losses = empty(ctx, {rows}, DType::f64), mean = empty(ctx, {1}, DType::f64);
        const Tensor targets = empty(ctx, {rows}, DType::i32), count = empty(ctx, {1}, DType::f64);
        fill(ctx, targets, 7);
        const std::string of = " of " + std::to_string(classes);
        cuda::count_targets(ctx, count, targets, classes);
        bench.measure("cross_entropy losses" + of, wide.bytes(),
                      [&] { cuda::cross_entropy_rows(ctx, losses, Tensor(), wide, targets, count, 1.0); });
        bench.measure("cross_entropy gradients" + of, 2 * logits.bytes(),
                      [&] { cuda::cross_entropy_rows(ctx, losses, logits, logits, targets, count, 1.0); });
        if (classes == 65) {
            bench.measure("count_targets", targets.bytes(),
                          [&] { cuda::count_targets(ctx, count, targets, classes); });
            bench.measure("sum_losses", losses.bytes(), [&] { cuda::sum_losses(ctx, mean, losses, count); });
        }
    }
}

void column_sums(Bench& bench) {
    const Context& ctx = bench.ctx();
    for (const std::int64_t columns : {width, 3 * width, hidden}) {
        const std::int64_t rows = batch * context;
        const Tensor x = numbers(ctx, {rows, columns}), sums = zeros(ctx, {columns}, DType::f32);
        const Tensor partial =
            empty(ctx, {(rows + column_sum_rows - 1) / column_sum_rows, columns}, DType::f32);
        bench.measure("column sums " + std::to_string(columns), x.bytes(),
                      [&] { cuda::add_column_sums(ctx, sums, x, partial); });
    }
}

void run(int runs, const std::string& filter) {
    Bench bench(runs, filter);
    copy_anchor(bench);
    const std::pair<const char*, void (*)(Bench&)> groups[] = {{"norm", norms},
                                                               {"activation", activations},
                                                               {"residual", residuals},
                                                               {"embedding", embeddings},
                                                               {"rope", rope},
                                                               {"cross_entropy", cross_entropy},
                                                               {"column_sums", column_sums}};
    for (const auto& [name, group] : groups)
        if (bench.wants(name)) group(bench);
}

}  // namespace
}  // namespace gradtile

int main(int argc, char** argv) {
    int runs = 20;
    std::string filter;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (std::string(argv[i]) == "--runs") runs = std::max(1, std::atoi(argv[i + 1]));
        if (std::string(argv[i]) == "--filter") filter = argv[i + 1];
    }
    try {
        gradtile::run(runs, filter);
    } catch (const gradtile::Error& error) {
        std::fprintf(stderr, "layers_cuda_bench: %s\n", error.what());
        return 1;
    }
    return 0;
}
