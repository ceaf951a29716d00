// gradtile bench layers: times the memory-bound operators at a training step's shapes, compared with a copy
// within the device's memory. An operator's bytes are the bytes in the tensors that it reads or writes, each
// counted once.
#include <algorithm>
#include <cmath>
#include <iostream>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/activation.h>
#include <gradtile/layers/column_sums.h>
#include <gradtile/layers/cross_entropy_head.h>
#include <gradtile/layers/dropout.h>
#include <gradtile/layers/embedding.h>
#include <gradtile/layers/head_transform.h>
#include <gradtile/layers/internal/activation_backend.h>
#include <gradtile/layers/internal/cross_entropy_backend.h>
#include <gradtile/layers/norm.h>
#include <gradtile/tools/bench/benchmarks.h>
#include <gradtile/tools/bench/step_flags.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>

namespace gradtile::cli {
namespace {

struct Flags {
    explicit Flags(Command& command) : step(command, &SettingUsers::bench_layers) {}
    StepFlags step;
    std::string filter;
};

/// Times operators. With a planning context the operators only allocate.
class Bench {
  public:
    Bench(const Context& context, const Step& step, const Sampling& sampling, Table& table)
        : ctx(context),
          dtype(step.dtype()),
          model(step.config.model),
          batch(step.config.micro_batch_size()),
          sampling_(sampling),
          table_(table),
          numbers_(ctx) {}

    Tensor numbers(const Shape& shape) const { return numbers_(ctx, shape, dtype); }
    Tensor numbers(const Shape& shape, DType type) const { return numbers_(ctx, shape, type); }
    void fill(const Tensor& x) const { numbers_.fill(ctx, x); }

    /// Times `body`, which reads and writes `bytes` bytes. The first call also measures the copy.
    void measure(const std::string& name, std::size_t bytes, const std::function<void()>& body) {
        if (ctx.is_planning()) return body();
        const double ms = median_milliseconds(ctx, sampling_, body);
        const double rate = static_cast<double>(bytes) / ms * 1e-6;
        if (copy_rate_ == 0) copy_rate_ = rate;
        table_.add(
            {name_of(dtype), name, static_cast<double>(bytes) * 1e-6, 1e3 * ms, rate, rate / copy_rate_});
    }

    const Context ctx;
    const DType dtype;
    const ModelConfig& model;
    const std::int64_t batch;

  private:
    Sampling sampling_;
    Table& table_;
    RandomNumbers numbers_;
    double copy_rate_ = 0;
};

Shape tokens_by(const Bench& bench, std::int64_t columns) {
    return {bench.batch, bench.model.context, columns};
}

void copy_of_activations(Bench& bench) {
    const Context& ctx = bench.ctx;
    const Tensor x = bench.numbers(tokens_by(bench, bench.model.hidden_width())), y = empty_like(ctx, x);
    bench.measure("copy", 2 * x.bytes(), [&] {
        if (ctx.is_planning()) return;
        if (ctx.device().is_cpu()) {
            copy(ctx, y, x);
        } else {
            cuda::copy_bytes(y.raw_data(), x.raw_data(), x.bytes(), ctx.device(), ctx.stream());
        }
    });
}

/// Times a layer's forward and backward pass on x.
template <class Layer>
void forward_and_backward(Bench& bench, const std::string& name, const Layer& layer, const Tensor& x) {
    const Context& ctx = bench.ctx;
    typename Layer::Saved saved;
    const Tensor y = layer.forward(ctx, x, saved), dy = bench.numbers(y.shape());
    bench.measure(name + " forward", x.bytes() + y.bytes(), [&] {
        typename Layer::Saved again;
        layer.forward(ctx, x, again);
    });
    bench.measure(name + " backward", 2 * x.bytes() + dy.bytes(), [&] { layer.backward(ctx, dy, saved); });
}

void norms(Bench& bench) {
    const Context& ctx = bench.ctx;
    const std::int64_t width = bench.model.width, head_dim = bench.model.head_dim();
    ParameterStore store;
    const LayerNorm layer_norm(store, "a", width, true);
    const RMSNorm rms_norm(store, "b", width), head_norm(store, "c", head_dim);
    store.allocate(ctx, bench.dtype);
    store.initialize(ctx, Seed{1});
    const Tensor x = bench.numbers(tokens_by(bench, width));
    forward_and_backward(bench, "layer_norm", layer_norm, x);
    LayerNorm::Saved saved;
    const Tensor dy = layer_norm.forward(ctx, x, saved), dx = bench.numbers(x.shape());
    bench.measure("layer_norm backward_add", 4 * x.bytes(),
                  [&] { layer_norm.backward_add(ctx, dy, saved, dx); });
    bench.measure("layer_norm backward_add, column sums", 4 * x.bytes(),
                  [&] { layer_norm.backward_add(ctx, dy, saved, dx, ColumnSums::compute); });
    const Tensor branch = bench.numbers(x.shape());
    for (const double p : {0.0, 0.1})
        bench.measure(p > 0 ? "residual, dropout, layer_norm" : "residual, layer_norm", 4 * x.bytes(), [&] {
            LayerNorm::Saved again;
            layer_norm.forward(ctx, Residual{x, branch, {.p = p}, DropoutKey::from_step(1, 2, 3)}, again);
        });
    forward_and_backward(bench, "rms_norm", rms_norm, x);
    forward_and_backward(bench, "rms_norm of heads", head_norm,
                         x.reshape({bench.batch, bench.model.context, bench.model.heads, head_dim}));
}

void activations(Bench& bench) {
    const std::int64_t hidden = bench.model.hidden_width();
    for (const ActivationTraits& traits : activation_table)
        forward_and_backward(bench, std::string(traits.name), ActivationLayer{traits.activation},
                             bench.numbers(tokens_by(bench, traits.gated ? 2 * hidden : hidden)));
}

void residuals(Bench& bench) {
    const Context& ctx = bench.ctx;
    const Tensor x = bench.numbers(tokens_by(bench, bench.model.width)), branch = bench.numbers(x.shape());
    const DropoutKey key = DropoutKey::from_step(1, 2, 3);
    Dropout::Saved saved;
    bench.measure("dropout", 2 * x.bytes(), [&] { Dropout{0.1}.forward(ctx, x, key, saved); });
    bench.measure("residual", 3 * x.bytes(), [&] { Dropout{0.0}.add_residual(ctx, x, branch, key, saved); });
    bench.measure("residual, dropout", 3 * x.bytes(),
                  [&] { Dropout{0.1}.add_residual(ctx, x, branch, key, saved); });
}

/// Tokens with the frequencies in natural text (proportional to 1 / rank), or uniformly distributed.
std::vector<std::int32_t> token_ids(const Bench& bench, bool natural) {
    const auto vocabulary = static_cast<double>(bench.model.vocabulary);
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < bench.batch * bench.model.context; ++i) {
        const auto draw = static_cast<double>(mix_seed(5, static_cast<std::uint64_t>(i)) >> 11) * 0x1p-53;
        const double id = natural ? std::pow(vocabulary, draw) - 1 : draw * vocabulary;
        ids.push_back(static_cast<std::int32_t>(id));
    }
    return ids;
}

void embeddings(Bench& bench) {
    const Context& ctx = bench.ctx;
    const std::int64_t width = bench.model.width;
    ParameterStore store;
    const Embedding embedding(store, "a", bench.model.vocabulary, width);
    const PositionEmbedding positions(store, "b", bench.model.context, width);
    store.allocate(ctx, bench.dtype);
    bench.fill(store.values());
    const Tensor dy = bench.numbers(tokens_by(bench, width));
    for (const bool natural : {true, false}) {
        const auto ids = token_ids(bench, natural);
        const Tensor tokens = from_host(ctx, ids, {bench.batch, bench.model.context});
        std::vector<bool> used(static_cast<std::size_t>(bench.model.vocabulary));
        for (const std::int32_t id : ids) used[static_cast<std::size_t>(id)] = true;
        const auto elements = static_cast<std::size_t>(std::count(used.begin(), used.end(), true) * width);
        const std::string kind = natural ? ", natural text" : ", uniform tokens";
        Embedding::Saved saved;
        bench.measure("embedding forward" + kind, dy.bytes() + elements * size_of(bench.dtype),
                      [&] { embedding.forward(ctx, tokens, saved); });
        // As in a training step, the tokens are sorted before backward begins.
        embedding.start_token_sort(ctx, saved);
        bench.measure("embedding backward" + kind,
                      dy.bytes() + 2 * elements * size_of(accumulator_of(bench.dtype)),
                      [&] { embedding.backward(ctx, dy, saved); });
        bench.measure("embedding order" + kind, 3 * tokens.bytes(), [&] {
            Embedding::Saved again{tokens};
            embedding.start_token_sort(ctx, again);
        });
    }
    PositionEmbedding::Saved saved;
    bench.measure("position embedding forward", 2 * dy.bytes(), [&] { positions.forward(ctx, dy, saved); });
    bench.measure("position embedding backward", dy.bytes(), [&] { positions.backward(ctx, dy, saved); });
}

/// The rotation alone, and the norm and rotation together, on queries and keys.
void rope(Bench& bench) {
    const Context& ctx = bench.ctx;
    const std::int64_t head_dim = bench.model.head_dim(), heads = bench.model.heads,
                       rotated = heads + bench.model.key_value_heads();
    if (head_dim % 2 != 0) return;  // rope rotates pairs
    const Rope rotation(head_dim, bench.model.context);
    const Tensor packed =
        bench.numbers(tokens_by(bench, (rotated + bench.model.key_value_heads()) * head_dim));
    const Tensor queries_keys =
        packed.slice(2, 0, rotated * head_dim).reshape({bench.batch, bench.model.context, rotated, head_dim});
    bench.measure("rope", 2 * queries_keys.bytes(), [&] { rotation.forward(ctx, queries_keys); });

    const auto vector = [&](DType dtype) { return zeros(ctx, {head_dim}, dtype); };
    const HeadTransform transform{.queries = heads,
                                  .q_weight = vector(bench.dtype),
                                  .k_weight = vector(bench.dtype),
                                  .epsilon = 1e-5,
                                  .angles = rotation.angles_from(ctx, 0, bench.model.context, bench.dtype)};
    const DType sum = accumulator_of(bench.dtype);
    const Tensor y = empty(ctx, queries_keys.shape(), bench.dtype),
                 rstd = empty(ctx, {bench.batch, bench.model.context, rotated}, sum);
    bench.measure("qk-norm and rope forward", 2 * queries_keys.bytes(),
                  [&] { transform_heads(ctx, y, rstd, queries_keys, transform); });
    const HeadWeightGradients weights{{vector(sum)}, {vector(sum)}};
    bench.measure("qk-norm and rope backward", 3 * queries_keys.bytes(),
                  [&] { differentiate_heads(ctx, y, rstd, queries_keys, transform, weights); });
}

/// Measures chunks as large as in training. d_logits shares the logits' memory, as in training, so every
/// repetition reads the previous repetition's gradients as logits.
void cross_entropy(Bench& bench) {
    const Context& ctx = bench.ctx;
    const std::int64_t classes = bench.model.vocabulary;
    ParameterStore store;
    const CrossEntropyHead head(store, "head", classes, 1);
    store.allocate(ctx, bench.dtype);
    const CrossEntropyHead::Chunk chunk = head.training_chunk(ctx, bench.batch * bench.model.context);
    const std::int64_t rows = chunk.logits.size(0);
    bench.fill(chunk.logits);
    const Tensor logits = chunk.logits.slice(1, 0, classes), d_logits = chunk.d_logits.slice(1, 0, classes);
    const Tensor wide = bench.numbers(chunk.logits.shape(), accumulator_of(bench.dtype)).slice(1, 0, classes);
    const Tensor losses = empty(ctx, {rows}, DType::f64), mean = empty(ctx, {1}, DType::f64);
    const Tensor targets = empty(ctx, {rows}, DType::i32), count = empty(ctx, {1}, DType::f64);
    fill(ctx, targets, 0);
    const auto count_targets = [&] {
        on_device(ctx, cpu::count_targets, cuda::count_targets, count, targets, classes);
    };
    count_targets();
    const auto rows_of = [&](const Tensor& gradients, const Tensor& from) {
        on_device(ctx, cpu::cross_entropy_rows, cuda::cross_entropy_rows, losses, gradients, from, targets,
                  count, 1.0, head.softcap);
    };
    bench.measure("cross_entropy losses", wide.bytes(), [&] { rows_of({}, wide); });
    bench.measure("cross_entropy gradients", logits.bytes() + d_logits.bytes(),
                  [&] { rows_of(d_logits, logits); });
    bench.measure("count_targets", targets.bytes(), count_targets);
    bench.measure("sum_losses", losses.bytes(),
                  [&] { on_device(ctx, cpu::sum_losses, cuda::sum_losses, mean, losses, count); });
}

void column_sums(Bench& bench) {
    const Context& ctx = bench.ctx;
    const std::int64_t width = bench.model.width, rows = bench.batch * bench.model.context;
    for (const std::int64_t columns : {width, 3 * width, bench.model.hidden_width()}) {
        const Tensor x = bench.numbers({rows, columns});
        const Tensor sums = zeros(ctx, {columns}, accumulator_of(bench.dtype));
        bench.measure(concat("column sums ", columns), x.bytes(), [&] { add_column_sums(ctx, {sums}, x); });
    }
    if (ctx.device().is_cpu()) return;
    const Tensor x = bench.numbers({rows, bench.model.hidden_width()}), dy = bench.numbers(x.shape());
    const SummedGradient dx(empty_like(ctx, x), empty_column_sums(ctx, x));
    bench.measure("gelu-tanh backward, column sums", 3 * x.bytes(), [&] {
        if (!ctx.is_planning()) cuda::activation_backward_summed(ctx, dx, dy, x, Activation::gelu_tanh);
    });
}

struct Group {
    std::string name;
    void (*measure)(Bench&);
};
const std::vector<Group>& groups() {
    static const std::vector<Group> list{{"norm", norms},
                                         {"activation", activations},
                                         {"residual", residuals},
                                         {"embedding", embeddings},
                                         {"rope", rope},
                                         {"cross_entropy", cross_entropy},
                                         {"column_sums", column_sums}};
    return list;
}

void measure_groups(const Context& ctx, const Step& step, const Flags& flags, Table& table) {
    Bench bench(ctx, step, flags.step.sampling(), table);
    copy_of_activations(bench);
    for (const Group& group : groups())
        if (group.name.find(flags.filter) != std::string::npos) group.measure(bench);
}

int bench_layers(const Flags& flags) {
    const auto is_selected = [&](const Group& group) {
        return group.name.find(flags.filter) != std::string::npos;
    };
    std::string names;
    for (const Group& group : groups()) names += (names.empty() ? "" : ", ") + group.name;
    check_usage(std::any_of(groups().begin(), groups().end(), is_selected), "--filter: '", flags.filter,
                "' is in none of ", names);
    const std::vector<Step> steps = flags.step.steps();
    Table table({{"dtype", "dtype", Column::Kind::text, 9},
                 {"operator", "operator", Column::Kind::text, 35},
                 {"mb", "MB"},
                 {"us", "us"},
                 {"gb_per_s", "GB/s"},
                 {"of_copy", "of copy", Column::Kind::percent, 8}},
                flags.step.json());
    const Context ctx = context_of(steps.front().config);
    for (const Step& step : steps) {
        const Context arena_ctx = with_arena_for(
            ctx, "bench layers", [&](const Context& dry) { measure_groups(dry, step, flags, table); });
        if (!flags.step.json()) std::cout << title_of(step, ctx) << std::endl;
        measure_groups(arena_ctx, step, flags, table);
    }
    return 0;
}

}  // namespace

void add_bench_layers(Command& bench) {
    Command command =
        bench.add_command("layers", "Time every memory-bound operator at a training step's shapes");
    const auto flags = std::make_shared<Flags>(command);
    command.add_value("--filter", flags->filter, "time only groups whose names contain this text");
    command.set_action([flags] { return bench_layers(*flags); });
}

}  // namespace gradtile::cli
