// Attention on the GPU: milliseconds and TFLOP/s, forward and backward.
//
//     attention_cuda_bench [--dtype f32 bf16] [--case 16,16,1024,64,1 ..] [--rounds 20] [--deterministic]
//
// A case is batch, heads, length, head dim, causal. FLOPs: 4 B H S^2 D forward, half of it under a causal
// mask; backward 2.5 times as many. A round is one call after the other on one stream, timed as a whole.
#include <chrono>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <gradtile/attention/attention.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

using namespace gradtile;

namespace {

struct Case {
    std::int64_t batch = 16, heads = 16, length = 1024, head_dim = 64;
    bool causal = true;

    explicit Case(const std::string& text) {
        std::istringstream in(text);
        char comma = 0;
        in >> batch >> comma >> heads >> comma >> length >> comma >> head_dim >> comma >> causal;
        check(!in.fail(), "attention_cuda_bench: case '", text,
              "' is not batch,heads,length,head_dim,causal");
    }
    double forward_flops() const {
        const double all = 4.0 * static_cast<double>(batch * heads * head_dim) * static_cast<double>(length) *
                           static_cast<double>(length);
        return causal ? all / 2 : all;
    }
};

/// Milliseconds of one call, of `rounds` in a row.
template <class Work>
double milliseconds(const Context& ctx, const Tensor& scalar, int rounds, Work&& work) {
    for (int i = 0; i < 3; ++i) work();
    (void)item(ctx, scalar);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i) work();
    (void)item(ctx, scalar);  // waits
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;
    return elapsed.count() / rounds;
}

void measure(const Case& c, DType dtype, int rounds, bool deterministic) {
    const Context plain(Device::cuda(0), 1);
    const Shape shape{c.batch, c.heads, c.length, c.head_dim};
    const auto arena_bytes = static_cast<std::size_t>(16 * 8 * shape.elements() + (64 << 20));
    const Context ctx = plain.with_allocator(std::make_shared<Arena>(Device::cuda(0), arena_bytes));
    const auto draw = [&](std::uint64_t seed) {
        return randn(ctx, shape, dtype, Seed{seed}).transpose(1, 2);
    };
    const Tensor q = draw(1), k = draw(2), v = draw(3), d_o = draw(4), o = draw(5);
    const attention::Gradients into{.q = draw(7), .k = draw(8), .v = draw(9)};
    const attention::Options options{.causal = c.causal, .deterministic = deterministic};
    attention::Saved saved;
    const Tensor one = zeros(ctx, {1}, DType::f32);
    const double forward =
        milliseconds(ctx, one, rounds, [&] { attention::forward(ctx, q, k, v, options, saved, o); });
    const double backward =
        milliseconds(ctx, one, rounds, [&] { attention::backward(ctx, d_o, options, saved, into); });
    std::printf("B%d H%d S%d D%d %s %s%s: forward %.3f ms %.1f TFLOP/s, backward %.3f ms %.1f TFLOP/s\n",
                static_cast<int>(c.batch), static_cast<int>(c.heads), static_cast<int>(c.length),
                static_cast<int>(c.head_dim), c.causal ? "causal" : "full", name_of(dtype).data(),
                deterministic ? " deterministic" : "", forward, c.forward_flops() / forward * 1e-9, backward,
                2.5 * c.forward_flops() / backward * 1e-9);
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
    CLI::App app("Times attention on the GPU");
    std::vector<std::string> cases{"16,16,1024,64,1"}, dtypes{"f32"};
    int rounds = 20;
    bool deterministic = false;
    app.add_option("--case", cases, "batch,heads,length,head_dim,causal");
    app.add_option("--dtype", dtypes, "f64, f32, bf16, f16");
    app.add_option("--rounds", rounds, "calls a timing");
    app.add_flag("--deterministic", deterministic, "bit-equal gradients");
    CLI11_PARSE(app, argc, argv);
    for (const std::string& dtype : dtypes)
        for (const std::string& text : cases) measure(Case(text), dtype_named(dtype), rounds, deterministic);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "attention_cuda_bench: %s\n", error.what());
    return 1;
}
