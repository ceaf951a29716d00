// Times the parts of a step of Muon on one GPU, for the matrices of 12 blocks of GPT-2 124M: the symmetric
// products by one kernel and by cuBLASLt, and the passes over memory, compared with a copy. Then times whole
// updates by Muon, with and without that kernel, and by AdamW.
//     muon_bench [layers] [width]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/symmetric_product.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/model_config.h>
#include <gradtile/train/optimizers/elementwise_optimizer.h>
#include <gradtile/train/optimizers/internal/matrix_optimizer_backend.h>
#include <gradtile/train/optimizers/internal/upload.h>
#include <gradtile/train/optimizers/muon.h>
#include "graph_timing.h"

namespace {

using namespace gradtile;

/// Median microseconds of a call.
double microseconds(const Context& ctx, const std::function<void()>& call, int calls = 10) {
    return bench::graph_microseconds(ctx, calls, [&](std::int64_t) { call(); });
}

void print(const std::string& name, double us, const std::string& rate) {
    std::printf("%-44s %9.1f us  %s\n", name.c_str(), us, rate.c_str());
    std::fflush(stdout);
}
std::string teraflops(double flops, double us) {
    return concat(static_cast<int>(1e-6 * flops / us), " TFLOP/s of the whole product");
}
std::string gigabytes(double bytes, double us) {
    return concat(static_cast<int>(1e-3 * bytes / us), " GB/s");
}

constexpr MatrixPolynomial quintic{.a = 3.4445, .b = -4.7750, .c = 2.0315};

/// Fills a tensor with a million random numbers, repeated.
void fill_randomly(const Context& ctx, const Tensor& x) {
    const Tensor some = randn(ctx, {std::int64_t{1} << 20}, x.dtype(), Seed{1}), flat = x.reshape({-1});
    for (std::int64_t i = 0; i < flat.elements(); i += some.elements()) {
        const std::int64_t length = std::min(some.elements(), flat.elements() - i);
        copy(ctx, flat.slice(0, i, length), some.slice(0, 0, length));
    }
}

void measure_products(const Context& ctx, std::int64_t count, std::int64_t rows, std::int64_t columns) {
    using Kind = SymmetricProduct::Kind;
    const bool tall = rows > columns;
    const std::int64_t n = std::min(rows, columns), m = std::max(rows, columns);
    const Tensor x = empty(ctx, {count, rows, columns}, DType::bf16), next = empty_like(ctx, x);
    fill_randomly(ctx, x);
    const Tensor gram = empty(ctx, {count, n, n}, DType::bf16), polynomial = empty_like(ctx, gram);
    const std::string name = concat(count, " of ", rows, " x ", columns, ": ");
    const double gram_flops = 2.0 * static_cast<double>(count * n * n * m),
                 square_flops = 2.0 * static_cast<double>(count * n * n * n);
    const auto measure = [&](const std::string& what, double flops, const std::function<void()>& call) {
        const double us = microseconds(ctx, call);
        print(name + what, us, teraflops(flops, us));
    };
    measure("A by cuBLASLt", gram_flops, [&] { gemm(ctx, gram, x, x, {.trans_a = tall, .trans_b = !tall}); });
    measure("A, one kernel", gram_flops, [&] {
        check(symmetric_product(ctx, gram, x, {.kind = tall ? Kind::gram_of_columns : Kind::gram_of_rows}),
              "no kernel");
    });
    measure("polynomial by cuBLASLt and a pass", square_flops, [&] {
        gemm(ctx, polynomial, gram, gram);
        add_lower_powers(ctx, polynomial, gram, quintic);
    });
    measure("polynomial, one kernel", square_flops, [&] {
        check(symmetric_product(ctx, polynomial, gram, {.kind = Kind::polynomial, .polynomial = quintic}),
              "no kernel");
    });
    measure("next X by cuBLASLt", gram_flops, [&] {
        if (tall) {
            gemm(ctx, next, x, polynomial);
        } else {
            gemm(ctx, next, polynomial, x);
        }
    });
    if (tall)
        measure("next X by cuBLASLt, transposed", gram_flops,
                [&] { gemm(ctx, next, x, polynomial, {.trans_b = true}); });
}

void measure_passes(const Context& ctx, std::int64_t count, std::int64_t rows, std::int64_t columns) {
    const std::int64_t n = rows * columns;
    const auto elements = static_cast<double>(count * n);
    const Tensor f32 = zeros(ctx, {3, count * n}, DType::f32), b16 = zeros(ctx, {2, count * n}, DType::bf16);
    MatrixGroup group{.shape = {rows, columns}, .matrices = {}};
    for (std::int64_t i = 0; i < count; ++i) group.matrices.push_back({i * n, i * n, i * n, i * n, 0});
    group.on_device = uploaded(ctx, group.matrices);
    const Tensor u = empty(ctx, {count, rows, columns}, DType::f32), squares = matrix_squares(ctx, u),
                 x = empty(ctx, {count, rows, columns}, DType::bf16), rate = zeros(ctx, {1}, DType::f64);
    const MatrixArrays arrays{.values = b16.select(0, 0),
                              .weights = f32.select(0, 0),
                              .gradients = f32.select(0, 1),
                              .momentum = f32.select(0, 2),
                              .updates = zeros(ctx, {1}, DType::i32)};
    const auto measure = [&](const std::string& what, int bytes, const std::function<void()>& call) {
        const double us = microseconds(ctx, call);
        print(concat(count, " of ", rows, " x ", columns, ": ", what), us, gigabytes(bytes * elements, us));
    };
    measure("copy", 8, [&] { copy(ctx, f32.select(0, 1), f32.select(0, 2)); });
    measure("momentum and squares", 16,
            [&] { cuda::matrix_momentum(ctx, arrays, group, {}, {.decay = 0.95}, u, squares); });
    measure("normalise to bfloat16", 6, [&] { normalize_matrices(ctx, u, squares, x); });
    measure("update of the weights", 12, [&] {
        cuda::matrix_apply(ctx, arrays, group, x, {}, rate,
                           {.lr_ratio = 20, .weight_decay = 0.1, .cautious_decay = false, .step_factor = 1},
                           {});
    });
}

/// The matrices of `layers` blocks of a GPT-2.
void add_blocks(ParameterStore& store, std::int64_t layers, std::int64_t width) {
    for (std::int64_t i = 0; i < layers; ++i) {
        const std::string name = concat("h.", i, '.');
        store.add(name + "attn.qkv.weight", {3 * width, width}, Init::zeros());
        store.add(name + "attn.proj.weight", {width, width}, Init::zeros());
        store.add(name + "mlp.fc.weight", {4 * width, width}, Init::zeros());
        store.add(name + "mlp.proj.weight", {width, 4 * width}, Init::zeros());
    }
}

using MakeOptimizer =
    std::function<std::unique_ptr<Optimizer>(const Context& ctx, const ParameterStore& store)>;

void measure_update(const std::string& what, std::int64_t layers, std::int64_t width,
                    const MakeOptimizer& make) {
    const Context ctx(Device::cuda(0), 1);
    ParameterStore store;
    add_blocks(store, layers, width);
    store.allocate(ctx, DType::bf16);
    fill_randomly(ctx, store.gradients());
    const std::unique_ptr<Optimizer> optimizer = make(ctx, store);
    const Context inside = ctx.with_allocator(std::make_shared<Arena>(ctx.device(), std::size_t{1} << 30));
    const Tensor rate = zeros(ctx, {1}, DType::f64);
    print("update of all matrices: " + what,
          microseconds(
              inside, [&] { optimizer->step(inside, rate, {}); }, 2),
          "");
}

void measure_updates(std::int64_t layers, std::int64_t width) {
    const ModelConfig model{.layers = layers, .heads = 1, .width = width};
    const auto muon = [&](const MuonOptions& options, bool split) -> MakeOptimizer {
        return [=](const Context& ctx, const ParameterStore& store) {
            const PackedRows rows = [=](const Parameter& parameter) {
                return split ? block_matrix_rows(parameter, model)
                             : std::vector<std::int64_t>{parameter.shape()[0]};
            };
            return std::make_unique<Muon>(ctx, store, rows, options);
        };
    };
    measure_update("AdamW", layers, width, [](const Context& ctx, const ParameterStore& store) {
        return std::make_unique<ElementwiseOptimizer>(ctx, store, AdamW{});
    });
    measure_update("Muon", layers, width, muon({}, false));
    measure_update("Muon, q, k and v apart", layers, width, muon({}, true));
    measure_update("NorMuon, q, k and v apart", layers, width, muon({.matrix = {.beta2 = 0.95}}, true));
    setenv("GRADTILE_HOPPER_GEMM", "off", 1);
    measure_update("Muon, GRADTILE_HOPPER_GEMM=off", layers, width, muon({}, false));
    unsetenv("GRADTILE_HOPPER_GEMM");
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const std::int64_t layers = argc > 1 ? std::atoll(argv[1]) : 12;
        const std::int64_t width = argc > 2 ? std::atoll(argv[2]) : 768;
        measure_updates(layers, width);
        const Context ctx(Device::cuda(0), 1);
        measure_passes(ctx, layers, 4 * width, width);
        for (const auto& [rows, columns] : {std::pair<int, int>{3, 1}, std::pair<int, int>{1, 1},
                                            std::pair<int, int>{4, 1}, std::pair<int, int>{1, 4}})
            measure_products(ctx, layers, rows * width, columns * width);
    } catch (const gradtile::Error& error) {
        std::fprintf(stderr, "muon_bench: %s\n", error.what());
        return 1;
    }
}
