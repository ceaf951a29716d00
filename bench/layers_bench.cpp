// Speed of the memory-bound layers next to a copy of as many bytes, in one run:
//   build/release/bench/layers_bench --benchmark_filter=f32 [--benchmark_min_time=0.5]
// GRADTILE_BENCH_THREADS (default 2) sets the threads. bytes_per_second counts every tensor read or written
// once; a layer as fast as memory reaches the copy's figure.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/cross_entropy_head.h>
#include <gradtile/layers/dropout.h>
#include <gradtile/layers/embedding.h>
#include <gradtile/layers/gelu.h>
#include <gradtile/layers/layer_norm.h>
#include <gradtile/layers/rms_norm.h>
#include <gradtile/layers/rope.h>
#include <gradtile/layers/swiglu.h>

namespace gradtile {
namespace {

// 6 layers x 384 wide, batch 16, context 256: the tensors of the "shakespeare-char" model.
constexpr std::int64_t batch = 16, context = 256, width = 384, hidden = 4 * width, heads = 6;

const Context& bench_context() {
    static const char* threads = std::getenv("GRADTILE_BENCH_THREADS");
    static const Context base(Device::cpu(), threads != nullptr ? std::atoi(threads) : 2);
    // As in training: memory that was touched before, at addresses that repeat.
    static const Context ctx =
        base.with_allocator(std::make_shared<Arena>(Device::cpu(), std::size_t{1} << 30));
    return ctx;
}

Tensor numbers(const Shape& shape, DType dtype) {
    return cast(bench_context(), rand(bench_context(), shape, DType::f32, Seed{1}), dtype);
}

template <class Body>
void measure(benchmark::State& state, std::size_t bytes, Body&& body) {
    for (auto _ : state) body();
    state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

void copy_anchor(benchmark::State& state, DType dtype) {
    const Tensor x = numbers({batch, context, hidden}, dtype), y = empty_like(bench_context(), x);
    measure(state, 2 * x.bytes(), [&] { copy(bench_context(), y, x); });
}

/// forward: x -> y; backward: dy, x -> dx.
template <class Layer>
void forward_of(benchmark::State& state, const Layer& layer, const Tensor& x) {
    std::size_t bytes = 0;
    {
        typename Layer::Saved saved;
        bytes = x.bytes() + layer.forward(bench_context(), x, saved).bytes();
    }
    measure(state, bytes, [&] {
        typename Layer::Saved saved;
        benchmark::DoNotOptimize(layer.forward(bench_context(), x, saved));
    });
}

template <class Layer>
void backward_of(benchmark::State& state, const Layer& layer, const Tensor& x) {
    typename Layer::Saved saved;
    const Tensor y = layer.forward(bench_context(), x, saved), dy = numbers(y.shape(), y.dtype());
    measure(state, 2 * x.bytes() + dy.bytes(),
            [&] { benchmark::DoNotOptimize(layer.backward(bench_context(), dy, saved)); });
}

template <class Norm>
struct NormBench {
    ParameterStore store;
    Norm norm;
    Tensor x;
    template <class... Options>
    explicit NormBench(DType dtype, Options... options)
        : norm(store, "norm", width, options...), x(numbers({batch, context, width}, dtype)) {
        store.allocate(bench_context().with_allocator(system_allocator(Device::cpu())), dtype);
        store.initialize(bench_context(), Seed{1});
    }
};

void layer_norm_backward_add(benchmark::State& state, DType dtype) {
    const NormBench<LayerNorm> test(dtype, true);
    LayerNorm::Saved saved;
    const Tensor y = test.norm.forward(bench_context(), test.x, saved),
                 dx = zeros(bench_context(), y.shape(), dtype);
    measure(state, 4 * y.bytes(), [&] { test.norm.backward_add(bench_context(), y, saved, dx); });
}

void gelu_backward_in_place(benchmark::State& state, DType dtype) {
    const Tensor x = numbers({batch, context, hidden}, dtype), dy = numbers(x.shape(), dtype);
    measure(state, 3 * x.bytes(), [&] { Gelu{}.backward_into(bench_context(), dy, dy, x); });
}

void residual(benchmark::State& state, DType dtype, double p) {
    const Tensor x = numbers({batch, context, width}, dtype), branch = numbers(x.shape(), dtype);
    Dropout::Saved saved;
    const DropoutKey key = DropoutKey::of_step(1, 2, 3);
    measure(state, 3 * x.bytes(), [&] {
        benchmark::DoNotOptimize(Dropout{p}.add_residual(bench_context(), x, branch, key, saved));
    });
}

void rope(benchmark::State& state, DType dtype) {
    const Rope rotation(width / heads, context);
    const Tensor packed = numbers({batch, context, 3 * width}, dtype);
    const Tensor queries_keys =
        packed.slice(2, 0, 2 * width).reshape({batch, context, 2 * heads, width / heads});
    measure(state, 2 * queries_keys.bytes(), [&] { rotation.forward(bench_context(), queries_keys); });
}

struct Vocabulary {
    ParameterStore store;
    Embedding embedding;
    Tensor tokens;
    Vocabulary(std::int64_t count, std::int64_t vocabulary, std::int64_t columns, DType dtype)
        : embedding(store, "tokens", vocabulary, columns) {
        store.allocate(bench_context().with_allocator(system_allocator(Device::cpu())), dtype);
        store.initialize(bench_context(), Seed{1});
        std::vector<std::int32_t> ids;
        for (std::int64_t i = 0; i < count; ++i)
            ids.push_back(static_cast<std::int32_t>(i * 7919 % vocabulary));
        tokens = from_host(bench_context(), ids, {count});
    }
};

void embedding_backward(benchmark::State& state, DType dtype, std::int64_t vocabulary) {
    const Vocabulary test(batch * context, vocabulary, width, dtype);
    Embedding::Saved saved;
    const Tensor y = test.embedding.forward(bench_context(), test.tokens, saved);
    measure(state, y.bytes() + 2 * static_cast<std::size_t>(y.elements()) * 4,
            [&] { test.embedding.backward(bench_context(), y, saved); });
}

/// items_per_second: floating-point operations of the three products.
void head(benchmark::State& state, DType dtype, std::int64_t rows, std::int64_t vocabulary,
          std::int64_t columns) {
    const Vocabulary test(rows, vocabulary, columns, dtype);
    const CrossEntropyHead head(test.embedding.weight);
    const Tensor x = numbers({rows, columns}, dtype);
    for (auto _ : state) {
        CrossEntropyHead::Saved saved;
        benchmark::DoNotOptimize(head.forward(bench_context(), x, test.tokens, saved));
    }
    state.SetItemsProcessed(state.iterations() * 6 * rows * vocabulary * columns);
}

void register_all() {
    using benchmark::RegisterBenchmark;
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto add = [&](const std::string& name, auto&& body) {
            RegisterBenchmark(concat(name, dtype == DType::f32 ? "/f32" : "/bf16").c_str(), body)
                ->UseRealTime()
                ->Unit(benchmark::kMicrosecond);
        };
        add("copy", [=](auto& s) { copy_anchor(s, dtype); });
        add("layer_norm_forward", [=](auto& s) {
            const NormBench<LayerNorm> test(dtype, true);
            forward_of(s, test.norm, test.x);
        });
        add("layer_norm_backward", [=](auto& s) {
            const NormBench<LayerNorm> test(dtype, true);
            backward_of(s, test.norm, test.x);
        });
        add("layer_norm_backward_add", [=](auto& s) { layer_norm_backward_add(s, dtype); });
        add("rms_norm_forward", [=](auto& s) {
            const NormBench<RMSNorm> test(dtype);
            forward_of(s, test.norm, test.x);
        });
        add("rms_norm_backward", [=](auto& s) {
            const NormBench<RMSNorm> test(dtype);
            backward_of(s, test.norm, test.x);
        });
        add("gelu_tanh_forward", [=](auto& s) {
            forward_of(s, Gelu{}, numbers({batch, context, hidden}, dtype));
        });
        add("gelu_tanh_backward", [=](auto& s) {
            backward_of(s, Gelu{}, numbers({batch, context, hidden}, dtype));
        });
        add("gelu_tanh_backward_in_place", [=](auto& s) { gelu_backward_in_place(s, dtype); });
        add("gelu_exact_forward", [=](auto& s) {
            forward_of(s, Gelu{Gelu::Form::exact}, numbers({batch, context, hidden}, dtype));
        });
        add("gelu_exact_backward", [=](auto& s) {
            backward_of(s, Gelu{Gelu::Form::exact}, numbers({batch, context, hidden}, dtype));
        });
        add("swiglu_forward", [=](auto& s) {
            forward_of(s, SwiGlu{}, numbers({batch, context, 2 * 1024}, dtype));
        });
        add("swiglu_backward", [=](auto& s) {
            backward_of(s, SwiGlu{}, numbers({batch, context, 2 * 1024}, dtype));
        });
        add("residual", [=](auto& s) { residual(s, dtype, 0.0); });
        add("residual_dropout", [=](auto& s) { residual(s, dtype, 0.2); });
        add("rope", [=](auto& s) { rope(s, dtype); });
        add("embedding_backward/V65", [=](auto& s) { embedding_backward(s, dtype, 65); });
        add("embedding_backward/V50257", [=](auto& s) { embedding_backward(s, dtype, 50257); });
        add("cross_entropy/N4096_V65_C384", [=](auto& s) { head(s, dtype, 4096, 65, 384); });
        add("cross_entropy/N768_V65_C128", [=](auto& s) { head(s, dtype, 768, 65, 128); });
        add("cross_entropy/N256_V50257_C768", [=](auto& s) { head(s, dtype, 256, 50257, 768); });
    }
}

}  // namespace
}  // namespace gradtile

int main(int argc, char** argv) {
    gradtile::register_all();
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
