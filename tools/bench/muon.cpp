// gradtile bench muon: times a Muon step's parts on a GPU, for GPT-2's matrices: the symmetric products by
// one kernel and by cuBLASLt, and the passes over memory, compared with a copy. Then times whole updates by
// Muon, with and without that kernel, and by AdamW.
#include <algorithm>
#include <cstdlib>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/symmetric_product.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/model_config.h>
#include <gradtile/tools/bench/benchmarks.h>
#include <gradtile/tools/bench/measure.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/optimizers/elementwise_optimizer.h>
#include <gradtile/train/optimizers/internal/matrix_optimizer_backend.h>
#include <gradtile/train/optimizers/internal/upload.h>
#include <gradtile/train/optimizers/muon.h>

namespace gradtile::cli {
namespace {

struct Flags {
    std::int64_t layers = 12, width = 768;
    bool json = false;
};

/// Adds a row for a call: its milliseconds, TFLOP/s of the whole product or GB/s, where they apply.
void add_row(const Context& ctx, Table& table, const std::string& name, const std::function<void()>& call,
             double flops, double bytes, std::int64_t calls = 10) {
    const double ms = graph_milliseconds(ctx, calls, [&](std::int64_t) { call(); });
    table.add({name, 1e3 * ms, 1e-9 * flops / ms, 1e-6 * bytes / ms});
}

constexpr MatrixPolynomial quintic{.a = 3.4445, .b = -4.7750, .c = 2.0315};

void measure_products(const Context& ctx, Table& table, std::int64_t count, std::int64_t rows,
                      std::int64_t columns) {
    using Kind = SymmetricProduct::Kind;
    const bool tall = rows > columns;
    const std::int64_t n = std::min(rows, columns), m = std::max(rows, columns);
    const Tensor x = RandomNumbers(ctx)(ctx, {count, rows, columns}, DType::bf16), next = empty_like(ctx, x);
    const Tensor gram = empty(ctx, {count, n, n}, DType::bf16), polynomial = empty_like(ctx, gram);
    const std::string name = concat(count, " of ", rows, " x ", columns, ": ");
    const double gram_flops = 2.0 * static_cast<double>(count * n * n * m),
                 square_flops = 2.0 * static_cast<double>(count * n * n * n);
    const auto measure = [&](const std::string& what, double flops, const std::function<void()>& call) {
        add_row(ctx, table, name + what, call, flops, no_value);
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

void measure_passes(const Context& ctx, Table& table, std::int64_t count, std::int64_t rows,
                    std::int64_t columns) {
    const std::int64_t n = rows * columns;
    const auto elements = static_cast<double>(count * n);
    const Tensor f32 = zeros(ctx, {3, count * n}, DType::f32), b16 = zeros(ctx, {2, count * n}, DType::bf16);
    MatrixGroup group{.shape = {rows, columns}, .matrices = {}};
    for (std::int64_t i = 0; i < count; ++i)
        group.matrices.push_back({.element = i * n,
                                  .value = i * n,
                                  .weight = i * n,
                                  .gradient = i * n,
                                  .momentum = i * n,
                                  .second_moment = 0});
    group.on_device = uploaded(ctx, group.matrices);
    const Tensor u = empty(ctx, {count, rows, columns}, DType::f32), squares = matrix_squares(ctx, u),
                 x = empty(ctx, {count, rows, columns}, DType::bf16), rate = zeros(ctx, {1}, DType::f64);
    const MatrixArrays arrays{.values = b16.select(0, 0),
                              .weights = f32.select(0, 0),
                              .gradients = f32.select(0, 1),
                              .momentum = f32.select(0, 2),
                              .updates = zeros(ctx, {1}, DType::i32)};
    const auto measure = [&](const std::string& what, int bytes, const std::function<void()>& call) {
        add_row(ctx, table, concat(count, " of ", rows, " x ", columns, ": ", what), call, no_value,
                bytes * elements);
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

void measure_update(const Context& ctx, Table& table, const std::string& what, const Flags& flags,
                    const MakeOptimizer& make) {
    ParameterStore store;
    add_blocks(store, flags.layers, flags.width);
    store.allocate(ctx, DType::bf16);
    RandomNumbers(ctx).fill(ctx, store.gradients());
    const std::unique_ptr<Optimizer> optimizer = make(ctx, store);
    const Context inside = ctx.with_allocator(std::make_shared<Arena>(ctx.device(), std::size_t{1} << 30));
    const Tensor rate = zeros(ctx, {1}, DType::f64);
    add_row(
        inside, table, "update of all matrices: " + what, [&] { optimizer->step(inside, rate, {}); },
        no_value, no_value, 2);
}

void measure_updates(const Context& ctx, Table& table, const Flags& flags) {
    const ModelConfig model{.layers = flags.layers, .heads = 1, .width = flags.width};
    const auto muon = [&](const MuonOptions& options, bool split) -> MakeOptimizer {
        return [=](const Context& ctx, const ParameterStore& store) {
            const PackedRows rows = [=](const Parameter& parameter) {
                return split ? block_matrix_rows(parameter, model)
                             : std::vector<std::int64_t>{parameter.shape()[0]};
            };
            return std::make_unique<Muon>(ctx, store, rows, options);
        };
    };
    measure_update(ctx, table, "AdamW", flags, [](const Context& ctx, const ParameterStore& store) {
        return std::make_unique<ElementwiseOptimizer>(ctx, store, AdamW{});
    });
    measure_update(ctx, table, "Muon", flags, muon({}, false));
    measure_update(ctx, table, "Muon, q, k and v apart", flags, muon({}, true));
    measure_update(ctx, table, "NorMuon, q, k and v apart", flags, muon({.matrix = {.beta2 = 0.95}}, true));
    setenv("GRADTILE_HOPPER_GEMM", "off", 1);
    measure_update(ctx, table, "Muon, GRADTILE_HOPPER_GEMM=off", flags, muon({}, false));
    unsetenv("GRADTILE_HOPPER_GEMM");
}

int bench_muon(const Flags& flags) {
    check_flag("--layers", flags.layers, {1, 1000});
    check_flag("--width", flags.width, {16, 1 << 14});
    const Context ctx(resolve_device(DeviceChoice::cuda), 1);
    Table table(
        {{"part", "part", Column::Kind::text, 60}, {"us", "us"}, {"tflops", "TFLOP/s"}, {"gb_per_s", "GB/s"}},
        flags.json);
    measure_updates(ctx, table, flags);
    measure_passes(ctx, table, flags.layers, 4 * flags.width, flags.width);
    for (const auto& [rows, columns] : {std::pair{3, 1}, std::pair{1, 1}, std::pair{4, 1}, std::pair{1, 4}})
        measure_products(ctx, table, flags.layers, rows * flags.width, columns * flags.width);
    return 0;
}

}  // namespace

void add_bench_muon(Command& bench) {
    Command command = bench.add_command("muon", "Time the parts of a step of Muon on a GPU");
    const auto flags = std::make_shared<Flags>();
    command.add_value("--layers", flags->layers, "blocks of the GPT-2 whose matrices are updated");
    command.add_value("--width", flags->width, "the GPT-2's width");
    command.add_switch("--json", flags->json, "print one JSON object per row");
    command.set_action([flags] { return bench_muon(*flags); });
}

}  // namespace gradtile::cli
