// Times the products of a step of generation on one GPU, K x N with few rows: cuBLASLt, and the shapes of
// fused_linear()'s kernel. Every product reads another matrix, so that none is in the L2 cache, and the
// products are replayed as one graph. Prints microseconds of a product and gigabytes of weights per second.
//     fused_linear_bench [rows]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/internal/fused_linear_backend.h>
#include "graph_timing.h"

namespace {

using namespace gradtile;

struct Shape2 {
    std::int64_t in, out;
};
constexpr Shape2 shapes[] = {{768, 2304},  {768, 768},   {768, 3072},  {3072, 768},  {768, 50304},
                             {1280, 3840}, {1280, 1280}, {1280, 5120}, {5120, 1280}, {1280, 50304}};

struct Variant {
    const char* name;
    cuda::FusedLinearTiles tiles;
};
constexpr Variant variants[] = {{"16 warps", {16, 1}}, {"2 x 8 warps", {8, 2}}};

void measure(const Context& ctx, std::int64_t rows, const Shape2& shape) {
    const auto [in, out] = shape;
    const double bytes = 2.0 * static_cast<double>(in * out);
    const auto matrices = std::max<std::int64_t>(8, static_cast<std::int64_t>(400e6 / bytes));
    const Tensor all = empty(ctx, {matrices, out, in}, DType::bf16), flat = all.reshape({-1});
    // A million random numbers, repeated, because drawing more takes longer than all measurements.
    const Tensor some = randn(ctx, {std::int64_t{1} << 20}, DType::bf16, Seed{1});
    for (std::int64_t i = 0; i < flat.elements(); i += some.elements()) {
        const std::int64_t length = std::min(some.elements(), flat.elements() - i);
        copy(ctx, flat.slice(0, i, length), some.slice(0, 0, length));
    }
    const Tensor x = randn(ctx, {rows, in}, DType::bf16, Seed{2}), bias = zeros(ctx, {out}, DType::bf16),
                 norm = zeros(ctx, {in}, DType::bf16), y = empty(ctx, {rows, out}, DType::bf16);
    const auto print = [&](const std::string& name, double us) {
        std::printf("%5lld x %-6lld rows %lld  %-34s %8.2f us  %7.0f GB/s\n", static_cast<long long>(in),
                    static_cast<long long>(out), static_cast<long long>(rows), name.c_str(), us,
                    1e-3 * bytes / us);
        std::fflush(stdout);
    };
    print("cuBLASLt", bench::graph_microseconds(ctx, matrices, [&](std::int64_t i) {
              gemm(ctx, y, x, all.select(0, i), {.trans_b = true, .bias = bias});
          }));
    for (const auto& [name, tiles] : variants)
        for (const bool with_norm : {false, true}) {
            if (with_norm && out < in) continue;  // no norm precedes these
            const auto call = [&](std::int64_t i) {
                FusedLinear op{.weight = all.select(0, i), .bias = bias};
                if (with_norm) op.norm = NormParameters{.weight = norm, .bias = norm};
                check(cuda::fused_linear(ctx, y, x, op, tiles), "fused_linear: not computed");
            };
            print(std::string(name) + (with_norm ? ", norm" : ""),
                  bench::graph_microseconds(ctx, matrices, call));
        }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const Context ctx(Device::cuda(0), 1);
        const std::int64_t rows = argc > 1 ? std::atoll(argv[1]) : 1;
        for (const Shape2& shape : shapes) measure(ctx, rows, shape);
    } catch (const Error& error) {
        std::fprintf(stderr, "fused_linear_bench: %s\n", error.what());
        return 1;
    }
}
