// gradtile bench gemm: times each matrix product in a training step, compared with a large square product.
//   us        as in training: with bias and activation fused or applied after the product, weight gradients
//             accumulated in float32, the head in chunks
//   plain us  as a framework's matmul: result in the operands' dtype, nothing fused
#include <algorithm>
#include <iostream>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/internal/gemm_candidates.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/column_sums.h>
#include <gradtile/layers/cross_entropy_head.h>
#include <gradtile/layers/linear_activation.h>
#include <gradtile/tools/bench/benchmarks.h>
#include <gradtile/tools/bench/step_flags.h>
#include <gradtile/tools/command_line/table.h>

namespace gradtile::cli {
namespace {

struct Flags {
    explicit Flags(Command& command) : step(command, &SettingUsers::bench_gemm) {}
    StepFlags step;
    bool paddings = false, candidates = false;
};

/// A linear layer of a block; `fused` says whether the same operator also computes an activation, before or
/// after the layer.
struct Layer {
    enum class Fused { none, after, before };
    std::string name;
    MatrixShape shape;
    Fused fused = Fused::none;
};

std::vector<Layer> layers_of(const ModelConfig& model) {
    const auto [qkv, proj, up, down] = block_matrices(model);
    std::vector<Layer> layers{{"qkv", qkv}, {"proj", proj}};
    if (traits_of(model.activation).gated) {
        layers.push_back({"gate_up", up, Layer::Fused::after});
        layers.push_back({"down", down, Layer::Fused::before});
    } else {
        layers.push_back({"fc", up, Layer::Fused::after});
        layers.push_back({"fcproj", down, Layer::Fused::before});
    }
    return layers;
}

/// One product in a step, in both forms: as in training, and plain.
struct Product {
    std::string name, pass;
    std::int64_t m, n, k;
    double count = 1;  ///< calls per step
    std::function<void()> trained = {};
    std::function<void()> plain = {};  ///< empty if this product equals `trained`
};

/// Times products and adds up their times per step. With a planning context nothing is timed.
class Bench {
  public:
    Bench(const Context& context, DType type, const Sampling& sampling, Table& table, bool candidates)
        : ctx(context),
          dtype(type),
          sampling_(sampling),
          table_(table),
          numbers_(ctx),
          with_candidates_(candidates && ctx.device().is_cuda()) {
        const ProductCeiling ceiling = measure_product_ceiling(ctx, dtype, sampling);
        if (ctx.is_planning()) return;
        ceiling_ = ceiling.flops_per_s();
        add_row({.name = "ceiling", .pass = "", .m = ceiling.size, .n = ceiling.size, .k = ceiling.size},
                ceiling.ms, ceiling.ms);
    }

    Tensor random(const Shape& shape) const { return numbers_(ctx, shape, dtype); }
    Tensor random_like(const Tensor& x) const { return numbers_(ctx, x.shape(), x.dtype()); }

    void measure(const Product& product) {
        if (ctx.is_planning()) return product.trained();
        const double trained = median_milliseconds(ctx, sampling_, product.trained);
        const double plain = product.plain ? median_milliseconds(ctx, sampling_, product.plain) : trained;
        add_row(product, trained, plain);
        if (with_candidates_) measure_candidates(product);
        ms_ += product.count * trained;
        plain_ms_ += product.count * plain;
        flops_ += product.count * flops_of(product);
    }

    void print_sum() const {
        if (ctx.is_planning()) return;
        const double flops_per_s = flops_ / ms_ * 1e3;
        table_.add({name_of(dtype), "step", "all products", "", no_value, 1e3 * ms_, 1e-12 * flops_per_s,
                    flops_per_s / ceiling_, 1e3 * plain_ms_});
    }

    const Context ctx;
    const DType dtype;

  private:
    /// Times each way to compute the product: by cuBLASLt or in steps, and by each applicable gradtile
    /// kernel.
    void measure_candidates(const Product& product) const {
        const auto measure_one = [&](std::uint64_t kernel, const std::string& name) {
            cuda::restrict_gemm(ctx, kernel);
            product.trained();
            bool applies = kernel == cuda::no_own_kernel;
            for (const GemmAlgorithm& choice : gemm_algorithms(ctx))
                applies |= cuda::own_gemm_kernel(choice) == kernel;
            if (!applies) return;
            const double ms = median_milliseconds(ctx, sampling_, product.trained);
            const double flops_per_s = flops_of(product) / ms * 1e3;
            table_.add({name_of(dtype), "", name, "", no_value, 1e3 * ms, 1e-12 * flops_per_s,
                        flops_per_s / ceiling_, no_value});
        };
        measure_one(cuda::no_own_kernel, " cuBLASLt or steps");
        for (const std::uint64_t kernel : cuda::own_gemm_kernels())
            measure_one(kernel, concat(' ', cuda::own_gemm_kernel_name(kernel)));
        cuda::restrict_gemm(ctx, std::nullopt);
    }
    static double flops_of(const Product& p) {
        return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n * p.k);
    }
    void add_row(const Product& p, double trained, double plain) const {
        const double flops_per_s = flops_of(p) / trained * 1e3;
        table_.add({name_of(dtype), p.name, p.pass, concat(p.m, " x ", p.n, " x ", p.k), p.count,
                    1e3 * trained, 1e-12 * flops_per_s, flops_per_s / ceiling_, 1e3 * plain});
    }

    Sampling sampling_;
    Table& table_;
    RandomNumbers numbers_;
    bool with_candidates_;
    double ceiling_ = 0, ms_ = 0, plain_ms_ = 0, flops_ = 0;
};

/// Measures one layer's products over `tokens` rows: forward, data gradient and weight gradient.
void measure_layer(Bench& bench, const Layer& layer, std::int64_t tokens, const ModelConfig& model) {
    const Context& ctx = bench.ctx;
    const auto& [name, shape, fused] = layer;
    const auto [out, in] = shape;
    const Tensor x = bench.random({tokens, in}), w = bench.random({out, in});
    const Tensor y = bench.random({tokens, out}), dy = bench.random_like(y);
    const Tensor dx = empty_like(ctx, x), dw = empty_like(ctx, w);
    const Tensor dw_sum = zeros(ctx, w.shape(), accumulator_of(w.dtype()));
    const Tensor bias = model.bias ? bench.random({out}) : Tensor();
    const Activation activation = model.activation;
    const auto count = static_cast<double>(model.layers);

    Product forward{name, "forward", tokens, out, in, count};
    forward.trained = [&] { gemm(ctx, y, x, w, {.trans_b = true, .bias = bias}); };
    forward.plain = [&] { gemm(ctx, y, x, w, {.trans_b = true}); };
    if (fused == Layer::Fused::after) {
        const Tensor activated =
            traits_of(activation).gated ? bench.random({tokens, out / 2}) : bench.random_like(y);
        forward.pass = concat("forward + ", name_of(activation));
        forward.trained = [&, activated] {
            linear_activation_forward(ctx, activated, y, x, w, bias, activation);
        };
    }
    bench.measure(forward);

    Product data{name, "data gradient", tokens, in, out, count};
    data.trained = [&] { gemm(ctx, dx, dy, w); };
    if (fused == Layer::Fused::before) {
        const Tensor hidden =
            traits_of(activation).gated ? bench.random({tokens, 2 * in}) : bench.random_like(x);
        SummedGradient d_hidden = empty_like(ctx, hidden);
        if (model.bias && !traits_of(activation).gated) d_hidden.column_sums = empty_column_sums(ctx, hidden);
        data.pass = concat("data grad + ", name_of(activation));
        data.plain = data.trained;
        data.trained = [&, hidden, d_hidden] {
            linear_activation_backward(ctx, d_hidden, dy, w, hidden, activation);
        };
    }
    bench.measure(data);

    bench.measure({name, "weight gradient", out, in, tokens, count,
                   [&] { gemm(ctx, dw_sum, dy, x, {.trans_a = true, .accumulate = true}); },
                   [&] { gemm(ctx, dw, dy, x, {.trans_a = true}); }});
}

/// Shape and dtype of one logits chunk, which is computed at once.
struct Chunk {
    std::int64_t rows, columns;
    DType dtype;
};

Chunk chunk_of(const Context& ctx, const Step& step) {
    const Context dry = ctx.plan(Arena::for_planning(ctx.device()));
    ParameterStore parameters;
    const CrossEntropyHead head(parameters, "head", step.config.model.vocabulary, step.config.model.width);
    parameters.allocate(dry, step.dtype());
    const Tensor logits = head.training_chunk(dry, step.rows()).logits;
    return {logits.size(0), logits.size(1), logits.dtype()};
}

/// Measures the output head's three products over a chunk; a step has `count` chunks.
void measure_head(Bench& bench, const std::string& name, const Chunk& chunk, std::int64_t width,
                  double count) {
    const Context& ctx = bench.ctx;
    const auto& [rows, columns, logits_dtype] = chunk;
    const Tensor x = bench.random({rows, width}), w = bench.random({columns, width});
    const Tensor dx = empty_like(ctx, x), dw = empty_like(ctx, w);
    const Tensor dw_sum = zeros(ctx, w.shape(), accumulator_of(w.dtype()));
    const Tensor logits = empty(ctx, {rows, columns}, logits_dtype);
    const Tensor d_logits = bench.random({rows, columns}), plain_logits = empty_like(ctx, d_logits);

    bench.measure({name, "logits", rows, columns, width, count,
                   [&] { gemm(ctx, logits, x, w, {.trans_b = true}); },
                   [&] { gemm(ctx, plain_logits, x, w, {.trans_b = true}); }});
    bench.measure({name, "data gradient", rows, width, columns, count, [&] { gemm(ctx, dx, d_logits, w); }});
    bench.measure({name, "weight gradient", columns, width, rows, count,
                   [&] { gemm(ctx, dw_sum, d_logits, x, {.trans_a = true, .accumulate = true}); },
                   [&] { gemm(ctx, dw, d_logits, x, {.trans_a = true}); }});
}

/// Measures the output head in forms that training does not use: with less vocabulary padding, and in chunks
/// with few rows.
void measure_other_heads(Bench& bench, const Chunk& chunk, const ModelConfig& model) {
    for (const std::int64_t multiple : {1, 2, 8, 16}) {
        const std::int64_t columns = rounded_up(model.vocabulary, multiple);
        measure_head(bench, concat("head ", columns), {chunk.rows, columns, chunk.dtype}, model.width, 0);
    }
    const std::int64_t rows = std::min<std::int64_t>(512, chunk.rows);
    measure_head(bench, "head in chunks", {rows, chunk.columns, chunk.dtype}, model.width, 0);
}

void measure_products(const Context& ctx, const Step& step, const Flags& flags, Table& table) {
    const ModelConfig& model = step.config.model;
    Bench bench(ctx, step.dtype(), flags.step.sampling(), table, flags.candidates);
    for (const Layer& layer : layers_of(model)) measure_layer(bench, layer, step.rows(), model);
    const Chunk chunk = chunk_of(ctx, step);
    const double chunks = static_cast<double>(step.rows()) / static_cast<double>(chunk.rows);
    measure_head(bench, "head", chunk, model.width, chunks);
    bench.print_sum();
    if (flags.paddings) measure_other_heads(bench, chunk, model);
}

int bench_gemm(const Flags& flags) {
    const std::vector<Step> steps = flags.step.steps();
    Table table({{"dtype", "dtype", Column::Kind::text, 9},
                 {"product", "product", Column::Kind::text, 14},
                 {"pass", "pass", Column::Kind::text, 26},
                 {"shape", "M x N x K", Column::Kind::text, 20},
                 {"count", "count", Column::Kind::number, 6},
                 {"us", "us"},
                 {"tflops", "TFLOP/s"},
                 {"of_ceiling", "of ceiling", Column::Kind::percent, 10},
                 {"plain_us", "plain us"}},
                flags.step.json());
    const Context ctx = context_of(steps.front().config);
    for (const Step& step : steps) {
        const Context arena_ctx = with_arena_for(
            ctx, "bench gemm", [&](const Context& dry) { measure_products(dry, step, flags, table); });
        if (!flags.step.json()) std::cout << title_of(step, ctx) << std::endl;
        measure_products(arena_ctx, step, flags, table);
    }
    return 0;
}

}  // namespace

void add_bench_gemm(Command& bench) {
    Command command = bench.add_command("gemm", "Time every matrix product of a training step");
    const auto flags = std::make_shared<Flags>(command);
    command.add_switch("--paddings", flags->paddings,
                       "also time the head with other paddings of its vocabulary, and in short chunks");
    command.add_switch("--candidates", flags->candidates,
                       "on a GPU: also time each way to compute a product that training chooses from");
    command.set_action([flags] { return bench_gemm(*flags); });
}

}  // namespace gradtile::cli
