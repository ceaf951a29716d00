// gradtile bench few-rows: times the products of a generation step on a GPU, K x N with few rows: cuBLASLt,
// and fused_linear()'s kernel with each shape of its thread blocks. Every product reads another matrix, so
// that none is in the L2 cache.
#include <algorithm>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/layers/internal/fused_linear_backend.h>
#include <gradtile/tools/bench/benchmarks.h>
#include <gradtile/tools/bench/measure.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/train/config/train_config.h>

namespace gradtile::cli {
namespace {

struct Flags {
    std::int64_t rows = 1;
    bool json = false;
};

struct MatrixShape {
    std::int64_t in, out;
};
/// The matrices of GPT-2 124M and 774M.
constexpr MatrixShape matrix_shapes[] = {{768, 2304},  {768, 768},   {768, 3072},  {3072, 768},
                                         {768, 50304}, {1280, 3840}, {1280, 1280}, {1280, 5120},
                                         {5120, 1280}, {1280, 50304}};

struct Blocks {
    const char* name;
    cuda::FusedLinearTiles tiles;
};
constexpr Blocks block_shapes[] = {{"16 warps", {16, 1}}, {"2 x 8 warps", {8, 2}}};

void measure(const Context& ctx, const MatrixShape& shape, const Flags& flags, Table& table) {
    const auto [in, out] = shape;
    const double bytes = 2.0 * static_cast<double>(in * out);
    const auto matrices = std::max<std::int64_t>(8, static_cast<std::int64_t>(400e6 / bytes));
    const RandomNumbers numbers(ctx);
    const Tensor all = numbers(ctx, {matrices, out, in}, DType::bf16),
                 x = numbers(ctx, {flags.rows, in}, DType::bf16), bias = zeros(ctx, {out}, DType::bf16),
                 norm = zeros(ctx, {in}, DType::bf16), y = empty(ctx, {flags.rows, out}, DType::bf16);
    const auto add_row = [&, in = in, out = out](const std::string& kernel,
                                                 const std::function<void(std::int64_t matrix)>& product) {
        const double ms = graph_milliseconds(ctx, matrices, product);
        table.add({in, out, kernel, 1e3 * ms, 1e-6 * bytes / ms});
    };
    add_row("cuBLASLt",
            [&](std::int64_t i) { gemm(ctx, y, x, all.select(0, i), {.trans_b = true, .bias = bias}); });
    for (const auto& [name, tiles] : block_shapes)
        for (const bool with_norm : {false, true}) {
            if (with_norm && out < in) continue;  // no norm precedes these
            add_row(concat(name, with_norm ? ", norm" : ""), [&, tiles = tiles](std::int64_t i) {
                FusedLinear op{.weight = all.select(0, i), .bias = bias};
                if (with_norm) op.norm = NormParameters{.weight = norm, .bias = norm};
                check(cuda::fused_linear_in_blocks(ctx, y, x, op, tiles),
                      "bench few-rows: fused_linear is turned off");
            });
        }
}

int bench_few_rows(const Flags& flags) {
    check_flag("--rows", flags.rows, {1, static_cast<double>(max_fused_rows)});
    const Context ctx(resolve_device(DeviceChoice::cuda), 1);
    Table table({{"in", "K"},
                 {"out", "N"},
                 {"kernel", "kernel", Column::Kind::text, 20},
                 {"us", "us"},
                 {"gb_per_s", "GB/s"}},
                flags.json);
    for (const MatrixShape& shape : matrix_shapes) measure(ctx, shape, flags, table);
    return 0;
}

}  // namespace

void add_bench_few_rows(Command& bench) {
    Command command =
        bench.add_command("few-rows", "Time the products of a generation step with few rows on a GPU");
    const auto flags = std::make_shared<Flags>();
    command.add_value("--rows", flags->rows, "rows: tokens of a step, 1 to 8");
    command.add_switch("--json", flags->json, "print one JSON object per row");
    command.set_action([flags] { return bench_few_rows(*flags); });
}

}  // namespace gradtile::cli
