// gradtile bench attention: times attention's forward and backward pass, and compares them with a large
// square product. FLOPs: 4 B H S^2 D forward, half of that with a causal mask; backward 2.5 times as many
// (five products instead of two). GB/s: q, k, v and o, and for the backward pass their gradients, divided by
// the time. A named mask's FLOPs are those of the blocks of 128 x 128 with a visible pair. With --tune, times
// every plan that this build has for a pass on a GPU: attention_tuning.h. The column "of read", on a CPU:
// GB/s relative to a plain read with the same byte count. Scratch: a pass's memory without its inputs and
// outputs.
#include <array>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <string>

#include <gradtile/attention/attention.h>
#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/text/formatted.h>
#include <gradtile/tools/bench/attention_anchor.h>
#include <gradtile/tools/bench/attention_passes.h>
#include <gradtile/tools/bench/attention_shapes.h>
#include <gradtile/tools/bench/benchmarks.h>
#include <gradtile/tools/bench/measure.h>
#include <gradtile/tools/bench/named_masks.h>
#include <gradtile/tools/bench/step_flags.h>
#include <gradtile/tools/command_line/devices.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>

namespace gradtile {
namespace {
enum class TimedPass { both, forward, backward };
}
template <>
struct EnumNames<TimedPass> {
    static constexpr std::array names = {std::pair{TimedPass::both, std::string_view("both")},
                                         std::pair{TimedPass::forward, std::string_view("forward")},
                                         std::pair{TimedPass::backward, std::string_view("backward")}};
};
}  // namespace gradtile

namespace gradtile::cli {
namespace {

struct Flags {
    PassFlags passes;
    std::optional<std::int64_t> batch, heads, kv_heads, head_dim;
    std::vector<std::int64_t> queries, lengths, packed;
    std::string anchor;  ///< a file; empty: none
    DeviceChoice device = DeviceChoice::automatic;
    std::vector<TrainDType> dtypes;  // empty: bf16 on a GPU, else f32
    TimedPass pass = TimedPass::both;
    std::int64_t threads = 0, runs = 9;
    bool causal = true, explain = false, tune = false, cpu_time = false, json = false;

    Sampling sampling() const {
        Sampling sampling{.runs = runs, .clock = cpu_time ? Clock::calling_thread : Clock::device};
        if (!anchor.empty()) sampling.min_sample_ms = 0;  // single calls, as the anchor times them
        return sampling;
    }
};

/// The blocks that a named mask leaves in one head.
attention::VisibleBlocks visible_blocks(const Shapes& shapes, std::string_view mask) {
    const Context cpu(Device::cpu());
    const Tensor q = empty(cpu, {1, shapes.length, 1, 1}, DType::f32);
    const attention::Options options{.row_ranges = mask_named(mask).ranges(cpu, shapes.length)};
    return attention::visible_blocks(attention::resolve(options, {}, q, q), q);
}

/// Returns the shapes that the flags give, or the default list.
std::vector<Shapes> shapes_of(const Flags& flags, Device device) {
    const bool has_shape_flags = !flags.packed.empty() || !flags.queries.empty() || !flags.lengths.empty() ||
                                 flags.batch || flags.heads || flags.kv_heads || flags.head_dim;
    if (!flags.anchor.empty()) {
        check_usage(!has_shape_flags, "--anchor gives the shapes; leave out their flags");
        return anchored_shapes(flags.anchor);
    }
    if (!has_shape_flags) {
        std::vector<Shapes> list = default_shapes(device);
        for (Shapes& shapes : list) shapes.causal = flags.causal;
        return list;
    }
    const bool gpu = device.is_cuda();
    const std::int64_t heads = flags.heads.value_or(gpu ? 16 : 12);
    Shapes shapes{.batch = flags.batch.value_or(gpu ? 16 : 1),
                  .heads = heads,
                  .kv_heads = flags.kv_heads.value_or(heads),
                  .queries = 0,
                  .length = 0,
                  .head_dim = flags.head_dim.value_or(64),
                  .causal = flags.causal};
    constexpr std::int64_t max_length = 1 << 20;
    const auto expect = [](const char* flag, std::int64_t value, std::int64_t max_value) {
        check_flag(flag, value, {1, static_cast<double>(max_value)});
    };
    expect("--batch", shapes.batch, 4096);
    expect("--heads", shapes.heads, 4096);
    expect("--kv-heads", shapes.kv_heads, shapes.heads);
    expect("--head-dim", shapes.head_dim, 256);
    check_usage(shapes.heads % shapes.kv_heads == 0, "--kv-heads: ", shapes.kv_heads, " does not divide ",
                shapes.heads, " heads");
    if (!flags.packed.empty()) {
        check_usage(!flags.batch && flags.lengths.empty() && flags.queries.empty(),
                    "--packed gives the lengths; leave out --batch, --length and --queries");
        shapes.packed = flags.packed;
        shapes.batch = 1;
        for (const std::int64_t length : flags.packed) check_flag("--packed", length, {0, max_length});
        shapes.length = std::accumulate(flags.packed.begin(), flags.packed.end(), std::int64_t{0});
        check_usage(shapes.length <= 1 << 24, "--packed: ", shapes.length,
                    " tokens; expected lengths of at most 16777216 tokens together");
        shapes.queries = shapes.length;
        return {shapes};
    }
    std::vector<Shapes> list;
    for (const std::int64_t length : flags.lengths.empty() ? std::vector<std::int64_t>{1024} : flags.lengths)
        for (const std::int64_t queries :
             flags.queries.empty() ? std::vector<std::int64_t>{length} : flags.queries) {
            expect("--length", length, max_length);
            expect("--queries", queries, max_length);
            shapes.length = length, shapes.queries = queries;
            list.push_back(shapes);
        }
    return list;
}

struct Scratch {
    std::size_t forward, backward;  // bytes
};
Scratch scratch_of(const Context& ctx, const Shapes& shapes, DType dtype, const Flags& flags) {
    const auto arena = Arena::for_planning(ctx.device());
    AttentionPasses passes(ctx.plan(arena), shapes, dtype, flags.passes);
    const auto peak_of = [&](auto&& work) {
        const std::size_t before = arena->bytes_in_use();
        arena->reset_peak();
        work();
        return arena->peak_bytes() - before;
    };
    const std::size_t with_saved = peak_of([&] { passes.forward(); });
    return {.forward = with_saved - passes.saved_bytes(), .backward = peak_of([&] { passes.backward(); })};
}

/// The speedups over anchors, by "PASS over IMPLEMENTATION".
using SpeedupsByPass = std::map<std::string, Speedups>;

void measure(const Context& ctx, const Shapes& shapes, DType dtype, const Flags& flags, double ceiling,
             Table& table, SpeedupsByPass& speedups) {
    const double bytes = shapes.forward_elements() * static_cast<double>(size_of(dtype));
    const bool on_cpu = ctx.device().is_cpu();
    const double read_rate =
        on_cpu ? measure_read_rate(ctx, static_cast<std::int64_t>(bytes), flags.sampling()) : 0;
    AttentionPasses passes(ctx, shapes, dtype, flags.passes);
    if (ctx.is_planning()) {
        passes.forward();
        passes.backward();
        return;
    }
    const auto row = [&](const char* pass, double flops, double bytes, std::size_t scratch,
                         const std::function<void()>& work) {
        rest(ctx);
        const double ms = median_milliseconds(ctx, flags.sampling(), work);
        const double flops_per_s = flops / ms * 1e3;
        const std::string mask_name =
            flags.passes.score.mask.empty() ? (shapes.causal ? "causal" : "full") : flags.passes.score.mask;
        std::vector<Cell> cells{shapes.batch,
                                shapes.heads,
                                shapes.kv_heads,
                                shapes.queries,
                                shapes.length,
                                shapes.head_dim,
                                name_of(dtype),
                                concat(flags.passes.algorithm),
                                mask_name,
                                pass,
                                ms,
                                1e-12 * flops_per_s,
                                flops_per_s / ceiling,
                                1e-6 * bytes / ms,
                                1e-6 * static_cast<double>(scratch)};
        if (on_cpu) cells.emplace_back(bytes / ms * 1e3 / read_rate);
        for (const AnchorTimes& anchor : shapes.anchors) {
            const bool forward = std::string_view(pass) == "forward";
            cells.emplace_back((forward ? anchor.forward_ms : anchor.backward_ms) / ms);
            speedups[concat(pass, " over ", anchor.implementation)].add(cells.back().number);
        }
        table.add(cells);
    };
    double flops = shapes.forward_flops();
    if (!flags.passes.score.mask.empty()) flops *= visible_blocks(shapes, flags.passes.score.mask).share();
    const Scratch scratch = scratch_of(ctx, shapes, dtype, flags);
    if (flags.pass == TimedPass::backward) {
        passes.forward();  // fills `saved`, which backward reads
    } else {
        row("forward", flops, bytes, scratch.forward, [&] { passes.forward(); });
    }
    if (flags.pass != TimedPass::forward)
        row("backward", 2.5 * flops, 2 * bytes, scratch.backward, [&] { passes.backward(); });
}

void measure_plans(const Context& ctx, const Shapes& shapes, DType dtype, const Flags& flags, Table& table) {
    AttentionPasses passes(ctx, shapes, dtype, flags.passes);
    if (ctx.is_planning()) {  // no plan needs more memory than a dry run counts
        passes.forward();
        passes.backward();
        return;
    }
    std::vector<Cell> shape;
    if (flags.json)
        shape = {shapes.batch,
                 shapes.heads,
                 shapes.kv_heads,
                 shapes.queries,
                 shapes.length,
                 shapes.head_dim,
                 shapes.causal ? "causal" : "full"};
    const double flops = shapes.forward_flops();
    if (flags.pass != TimedPass::backward)
        tune(ctx, passes.tuned_forward(shapes, flops), flags.sampling(), shape, table);
    if (flags.pass != TimedPass::forward)
        tune(ctx, passes.tuned_backward(shapes, flops), flags.sampling(), shape, table);
}

/// Times all plans for every shape, in one table per shape.
void tune_attention(const Context& ctx, const std::vector<Shapes>& list, DType dtype, const Flags& flags) {
    if (const char* const why_not = attention::why_no_tile_candidates(); why_not != nullptr && !flags.json)
        std::cout << why_not << std::endl;
    std::vector<Column> columns;
    if (flags.json)
        columns = {{"batch", ""},
                   {"heads", ""},
                   {"kv_heads", ""},
                   {"queries", ""},
                   {"length", ""},
                   {"head_dim", ""},
                   {"mask", "", Column::Kind::text}};
    for (const Column& column : tuning_columns()) columns.push_back(column);
    for (const Shapes& shapes : list) {
        Table table(columns, flags.json,
                    concat(dtype, " on ", ctx.device(), ", ", shapes.batch, " x ", shapes.heads,
                           " heads over ", shapes.kv_heads, ", ", shapes.queries, " x ", shapes.length,
                           ", head dim ", shapes.head_dim, shapes.causal ? ", causal" : ""));
        const Context arena_ctx = with_arena_for(ctx, "bench attention", [&](const Context& dry) {
            measure_plans(dry, shapes, dtype, flags, table);
        });
        measure_plans(arena_ctx, shapes, dtype, flags, table);
    }
}

/// Times a shape without the named mask, and prints how many blocks the mask leaves.
void measure_dense(const Context& ctx, const Shapes& shapes, DType dtype, const Flags& flags, double ceiling,
                   Table& table, SpeedupsByPass& speedups) {
    const attention::VisibleBlocks blocks = visible_blocks(shapes, flags.passes.score.mask);
    if (!flags.json)
        std::cout << "--mask " << flags.passes.score.mask << ", " << shapes.length
                  << " tokens: " << blocks.visible << " of " << blocks.all << " blocks of 128 x 128 ("
                  << 100 * blocks.share() << "%) have a visible pair" << std::endl;
    Flags dense = flags;
    dense.passes.score.mask.clear();
    const Context arena_ctx = with_arena_for(ctx, "bench attention", [&](const Context& dry) {
        measure(dry, shapes, dtype, dense, 0, table, speedups);
    });
    measure(arena_ctx, shapes, dtype, dense, ceiling, table, speedups);
}

/// Prints the kernels for every shape, or times them, with the dtype's ceiling.
void measure_shapes(const Context& ctx, const std::vector<Shapes>& list, DType dtype, const Flags& flags,
                    Table& table) {
    std::optional<ProductCeiling> ceiling;
    SpeedupsByPass speedups;
    for (const Shapes& shapes : list) {
        const Context arena_ctx = with_arena_for(ctx, "bench attention", [&](const Context& dry) {
            measure(dry, shapes, dtype, flags, 0, table, speedups);
        });
        if (flags.explain) {
            std::cout << shapes.batch << " x " << shapes.heads << " heads over " << shapes.kv_heads << ", "
                      << shapes.queries << " x " << shapes.length << ", head dim " << shapes.head_dim << ": "
                      << AttentionPasses(arena_ctx, shapes, dtype, flags.passes).explain() << std::endl;
            continue;
        }
        if (!ceiling) {
            ceiling = measure_product_ceiling(ctx, dtype, flags.sampling());
            if (!flags.json)
                std::cout << dtype << " on " << ctx.device() << "; ceiling: a product of " << ceiling->size
                          << "^3 at " << 1e-12 * ceiling->flops_per_s() << " TFLOP/s" << std::endl;
        }
        if (!flags.passes.score.mask.empty())
            measure_dense(ctx, shapes, dtype, flags, ceiling->flops_per_s(), table, speedups);
        measure(arena_ctx, shapes, dtype, flags, ceiling->flops_per_s(), table, speedups);
    }
    if (flags.json) return;
    for (const auto& [pass, over_anchor] : speedups)
        std::cout << pass << ": " << formatted("%.3f", over_anchor.geometric_mean())
                  << " times as fast (geometric mean), at least " << formatted("%.2f", over_anchor.smallest())
                  << std::endl;
}

int bench_attention(const Flags& flags) {
    check_flag("--threads", flags.threads, threads_range);
    check_flag("--runs", flags.runs, runs_range);
    flags.passes.score.check();
    if (!flags.passes.score.mask.empty()) {
        mask_named(flags.passes.score.mask);
        check_usage(flags.packed.empty() && flags.queries.empty(),
                    "--mask: cannot be combined with --packed or --queries");
    }
    if (flags.tune) {
        check_usage(!flags.explain && !flags.cpu_time && flags.anchor.empty(),
                    "--tune: cannot be combined with --explain, --cpu-time or --anchor");
        check_usage(flags.passes.algorithm == attention::Algorithm::flash2, "--tune: --algorithm ",
                    flags.passes.algorithm, " has one way to compute a call; expected flash2");
    }
    const Device device = resolve_device(flags.device);
    check_usage(!flags.tune || device.is_cuda(), "--tune: times kernels of a GPU, but the device is ", device,
                "; expected --device cuda");
    check_usage(!flags.cpu_time || (device.is_cpu() && flags.threads == 1),
                "--cpu-time: measures one thread; expected --device cpu --threads 1");
    const std::vector<Shapes> list = shapes_of(flags, device);
    const std::vector<TrainDType> dtypes =
        !flags.dtypes.empty() ? flags.dtypes
                              : std::vector{device.is_cuda() ? TrainDType::bf16 : TrainDType::f32};
    const Context ctx(device, static_cast<int>(flags.threads));
    if (flags.tune) {
        for (const TrainDType dtype : dtypes) tune_attention(ctx, list, storage_dtype(dtype), flags);
        return 0;
    }
    std::vector<Column> columns{{"batch", "B", Column::Kind::number, 4},
                                {"heads", "H", Column::Kind::number, 4},
                                {"kv_heads", "Hkv", Column::Kind::number, 4},
                                {"queries", "Sq", Column::Kind::number, 6},
                                {"length", "S", Column::Kind::number, 6},
                                {"head_dim", "D", Column::Kind::number, 4},
                                {"dtype", "dtype", Column::Kind::text, 9},
                                {"algorithm", "algorithm", Column::Kind::text, 16},
                                {"mask", "mask", Column::Kind::text, 14},
                                {"pass", "pass", Column::Kind::text, 8},
                                {"ms", "ms"},
                                {"tflops", "TFLOP/s"},
                                {"of_ceiling", "of ceiling", Column::Kind::percent, 10},
                                {"gb_per_s", "GB/s"},
                                {"scratch_mb", "scratch MB", Column::Kind::number, 10}};
    if (device.is_cpu()) columns.push_back({"of_read", "of read", Column::Kind::percent, 8});
    for (const AnchorTimes& anchor : list.front().anchors)
        columns.push_back({anchor.implementation.c_str(), anchor.implementation.c_str()});
    Table table(columns, flags.json);
    for (const TrainDType dtype : dtypes) measure_shapes(ctx, list, storage_dtype(dtype), flags, table);
    return 0;
}

}  // namespace

void add_bench_attention(Command& bench) {
    Command command = bench.add_command(
        "attention", "Time attention forward and backward (default: a short list of shapes)");
    const auto flags = std::make_shared<Flags>();
    command.add_value("--batch", flags->batch, "sequences (default: 16 on a GPU, else 1)");
    command.add_value("--heads", flags->heads, "query heads (default: 16 on a GPU, else 12)");
    command.add_value("--kv-heads", flags->kv_heads,
                      "key and value heads (default: the number of query heads)");
    command.add_row_values("--length", flags->lengths, "keys per sequence (default: 1024)");
    command.add_row_values(
        "--queries", flags->queries,
        "queries per sequence, the last ones under a causal mask (default: as many as keys)");
    command.add_value("--head-dim", flags->head_dim, "width of a head (default: 64)");
    command.add_value(
        "--packed", flags->packed,
        "lengths of packed sequences, for example 64,2048,512, in place of --batch and --length");
    command.add_value(
        "--anchor", flags->anchor,
        "output of bench/attention_anchor.py: its shapes, and how many times as fast each pass is "
        "(default: none)");
    command.add_value<std::string>("--algorithm", "flash2, naive, memory_efficient or flash1",
                                   concat(flags->passes.algorithm), [flags](const std::string& name) {
                                       flags->passes.algorithm =
                                           attention::algorithm_named(name, "--algorithm");
                                   });
    command.add_switch("--causal", "mask keys after the query (default: yes)",
                       [flags](bool causal) { flags->causal = causal; });
    command.add_value("--softcap", flags->passes.score.softcap, "c in scores c * tanh(product / c); 0: none");
    command.add_switch("--alibi", flags->passes.score.alibi,
                       "subtract from scores a multiple of the distance between query and key");
    command.add_value("--bias", flags->passes.score.bias,
                      "add a bias with these axes to the scores and compute its gradient: bhqk "
                      "or a part, for example hqk or bk (default: no bias)");
    command.add_switch("--mask-bias", flags->passes.score.mask_bias,
                       "add a bias of the keys of each sequence, without a gradient, as Evoformer's mask");
    std::string masks =
        "time this mask, made of row ranges, beside the call without a mask, in place of --causal (default: "
        "none):";
    for (const NamedMask& mask : named_masks()) masks += concat(' ', mask.name, " (", mask.help, ')');
    command.add_value<std::string>("--mask", masks, [flags](const std::string& name) {
        flags->passes.score.mask = name;
        flags->causal = false;
    });
    command.add_switch("--sink", flags->passes.score.sink, "add a logit without a value to every row");
    command.add_value("--dropout", flags->passes.score.dropout, "probability of dropping an element of P");
    command.add_value("--pass", flags->pass, "passes to time");
    command.add_row_values("--dtype", flags->dtypes, "type of Q, K and V (default: bf16 on a GPU, else f32)");
    add_device_flag(command, flags->device);
    command.add_value("--threads", flags->threads, "number of threads; 0: all cores");
    command.add_switch("--deterministic", flags->passes.deterministic,
                       "the same bits in every run on a GPU, but slower; the CPU always gives the same bits");
    command.add_switch("--explain", flags->explain,
                       "print which kernels compute the forward pass, on a GPU also those of the backward "
                       "pass, and why, and time nothing");
    command.add_switch("--tune", flags->tune,
                       "time every kernel and schedule that this build can use on a GPU, beside the choice "
                       "of the policy, and compare the results");
    command.add_value("--runs", flags->runs, "number of timings; their median is reported");
    command.add_switch("--cpu-time", flags->cpu_time,
                       "time one thread by its CPU time, for a busy machine; needs --threads 1");
    command.add_switch("--json", flags->json, "print one JSON object per row");
    command.set_action([flags] { return bench_attention(*flags); });
}

}  // namespace gradtile::cli
