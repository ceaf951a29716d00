// Matrix products at the shapes of the presets: GFLOP/s of gemm() in float32 and bfloat16.
//   gemm_bench --benchmark_min_time=0.3 --threads=2
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/random.h>

namespace {

using namespace gradtile;

struct Layer {
    const char* name;
    std::int64_t tokens, out, in;
};
constexpr Layer layers[] = {{"cpu_qkv", 768, 384, 128},    {"cpu_mlp", 768, 128, 512},
                            {"char_qkv", 4096, 1152, 384}, {"char_mlp", 4096, 1536, 384},
                            {"gpt2_mlp", 256, 3072, 768},  {"gpt2_qkv", 256, 2304, 768},
                            {"gpt2_head", 256, 50257, 768}};
enum class Pass { forward, input_gradient, weight_gradient };

void product(benchmark::State& state, int threads, Layer layer, Pass pass, DType dtype) {
    const Context ctx(Device::cpu(), threads);
    const auto [name, tokens, out, in] = layer;
    const Tensor x = randn(ctx, {tokens, in}, dtype, Seed{1}), w = randn(ctx, {out, in}, dtype, Seed{2});
    const Tensor y = randn(ctx, {tokens, out}, dtype, Seed{3});
    const Tensor dx = empty_like(ctx, x), dw = zeros(ctx, {out, in}, DType::f32);
    for (auto _ : state) {
        if (pass == Pass::forward) gemm(ctx, y, x, w, {.trans_b = true});
        if (pass == Pass::input_gradient) gemm(ctx, dx, y, w);
        if (pass == Pass::weight_gradient) gemm(ctx, dw, y, x, {.trans_a = true, .accumulate = true});
    }
    state.counters["GFLOP/s"] = benchmark::Counter(
        2e-9 * static_cast<double>(tokens * out * in) * static_cast<double>(state.iterations()),
        benchmark::Counter::kIsRate);
}

}  // namespace

int main(int argc, char** argv) {
    int threads = 0, kept = 1;
    for (int i = 1; i < argc; ++i) {
        const std::string_view argument = argv[i];
        constexpr std::string_view flag = "--threads=";
        if (argument.starts_with(flag)) {
            threads = std::atoi(argv[i] + flag.size());
        } else {
            argv[kept++] = argv[i];
        }
    }
    argc = kept;
    benchmark::AddCustomContext("matrix library", cpu_matrix_library());
    benchmark::AddCustomContext("threads", threads == 0 ? "every core" : std::to_string(threads));
    for (const DType dtype : {DType::f32, DType::bf16})
        for (const auto& [pass, pass_name] : {std::pair{Pass::forward, "forward"},
                                              {Pass::input_gradient, "input_gradient"},
                                              {Pass::weight_gradient, "weight_gradient"}})
            for (const Layer& layer : layers)
                benchmark::RegisterBenchmark(concat(dtype, '/', pass_name, '/', layer.name, ':', layer.tokens,
                                                    'x', layer.out, 'x', layer.in)
                                                 .c_str(),
                                             product, threads, layer, pass, dtype)
                    ->UseRealTime()
                    ->Unit(benchmark::kMicrosecond);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
