// gradtile bench train: time and memory of whole training steps and their operators.
#include <algorithm>
#include <cmath>
#include <map>

#include <gradtile/core/available_memory.h>
#include <gradtile/core/cuda/step_graph.h>
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/internal/offload_stream.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/tools/bench/benchmarks.h>
#include <gradtile/tools/bench/step_flags.h>
#include <gradtile/tools/bench/step_parts.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/plan/device_peak.h>
#include <gradtile/train/memory_choice.h>
#include <gradtile/train/memory_request.h>
#include <gradtile/train/optimizers/global_norm.h>
#include <gradtile/train/replica.h>

namespace gradtile::cli {
namespace {

struct Flags {
    explicit Flags(Command& command) : step(command, &SettingUsers::bench_train) {}
    StepFlags step;
    bool memory = false, breakdown = false, cpu_time = false;
};

/// A step with the settings that its memory budget chooses.
struct FittedStep : Step {
    FittedStep(const Context& ctx, const Step& given) : Step(given), budget(available_memory(ctx.device())) {
        config.out.clear();  // without checkpoints, whose copy would need memory
        if (config.memory_budget.empty()) return;
        budget = bytes_to_plan(config, ctx.device());
        MemoryChoice choice =
            choose_within(ctx, ctx.device(), config, /*ranks=*/1, /*row_ranges=*/false, budget);
        config = std::move(choice.config);
        chosen = std::move(choice.description);
    }
    MemoryRequest request(const Context& ctx) const { return memory_request(config, ctx.device()); }

    std::size_t budget;  ///< bytes that the step's plan may fill
    std::string chosen;  ///< MemoryChoice::description
};

double mebibytes(std::size_t bytes) {
    return static_cast<double>(bytes) / (1 << 20);
}

Tensor generated_tokens(const Context& ctx, const Shape& shape, std::int64_t vocabulary) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.elements()));
    std::uint32_t state = 1;
    for (std::int32_t& token : tokens) {
        state = 1664525u * state + 1013904223u;
        token = static_cast<std::int32_t>((state >> 8) % static_cast<std::uint32_t>(vocabulary));
    }
    return from_host(ctx, tokens, shape);
}

/// A replica with its data, without the Trainer.
class Training {
  public:
    Training(const Context& ctx, const TrainConfig& config)
        : config_(config),
          communicator_(make_communicator(ctx, alone_)),
          replica_(ctx, config_, std::nullopt, *communicator_),
          tokens_(generated_tokens(ctx, {config.micro_batch_size(), config.model.context},
                                   config.model.vocabulary)),
          rate_(from_host(ctx, std::vector<double>{1e-4}, {1}, DType::f64)),
          seed_tensor_(zeros(ctx, {2}, DType::i32)) {
        replica_.initialize(Seed{1});
        if (!has_part(config.offload, Offload::residuals)) return;
        const Context dry = ctx.plan(Arena::for_planning(ctx.device()));
        offload_ = std::make_unique<OffloadStream>(dry);
        enqueue(dry);
        offload_ = std::make_unique<OffloadStream>(ctx, offload_->host().peak_bytes());
    }

    /// Enqueues one step. The targets are the tokens themselves, because the loss does not matter here.
    void enqueue(const Context& ctx) {
        const Transformer& model = replica_.model.transformer;
        const std::int64_t micro_steps = config_.accumulation_steps();
        Tensor loss;
        const ForwardHooks gather = replica_.parallel.overlap_gather_with_forward(ctx);
        for (std::int64_t micro_step = 0; micro_step < micro_steps; ++micro_step) {
            const BackwardHooks hooks = replica_.parallel.start_micro_step(
                ctx, micro_step, micro_steps, DropoutKey::from_seed_tensor(seed_tensor_));
            const ForwardOptions options{
                .gradient_scale = 1.0 / static_cast<double>(micro_steps),
                .dropout = DropoutKey::from_seed_tensor(seed_tensor_, micro_step * tokens_.size(0)),
                .hooks = gather,
                .offload = offload_.get()};
            Transformer::Saved saved;
            loss = {};  // releases the last tensor, so that the arena is empty, as at every micro-step's
                        // start in training
            loss = model.forward(ctx, tokens_, tokens_, saved, options);
            model.backward(ctx, std::move(saved), hooks);
        }
        replica_.parallel.finish_gradients(ctx);
        const Clip clip =
            clip_global_norm(ctx, replica_.parallel.gradients(), {.max_norm = config_.clip, .loss = loss});
        replica_.optimizer->step(ctx, rate_, {.gradient_scale = clip.scale});
    }

    std::vector<Part> parts(const Context& ctx) {
        const LanguageModel& model = replica_.model;
        return parts_of_step(ctx, model.transformer, model.parameters, *replica_.optimizer, tokens_);
    }

  private:
    TrainConfig config_;
    ProcessGroup alone_;
    std::unique_ptr<Communicator> communicator_;
    Replica replica_;
    Tensor tokens_, rate_, seed_tensor_;
    std::unique_ptr<OffloadStream> offload_;  // null unless the step offloads residuals
};

/// Captures a step into `graph` if training does. Returns "graph of 210 nodes (12 ms, 4 MiB)".
std::string capture(const Context& ctx, const TrainConfig& config, Training& training, StepGraph& graph) {
    const StepShape shape{.micro_steps = config.accumulation_steps()};
    if (!config.cuda_graph || step_graph_bytes(config, shape, /*ranks=*/1) > max_step_graph_bytes)
        return "kernel by kernel";
    training.enqueue(ctx);
    cuda::synchronize(ctx.device(), ctx.stream());
    const std::size_t before = cuda::device_memory(ctx.device()).free_bytes;
    const double ms =
        milliseconds(ctx, Clock::wall, [&] { graph.capture(ctx, [&] { training.enqueue(ctx); }); });
    const std::size_t after = cuda::device_memory(ctx.device()).free_bytes;
    return concat("graph of ", graph.nodes(), " nodes (", std::llround(ms), " ms, ",
                  (before - std::min(before, after)) >> 20, " MiB)");
}

void print_breakdown(const Context& ctx, Training& training, const Flags& flags, const Sampling& sampling,
                     double step_ms) {
    const Context arena_ctx = with_arena_for(ctx, "bench train --breakdown", [&](const Context& dry) {
        for (const Part& part : training.parts(dry)) part.work();
    });
    Table table({{"operator", "operator", Column::Kind::text, 32},
                 {"count", "count", Column::Kind::number, 6},
                 {"us", "us each"},
                 {"ms_per_step", "ms/step"},
                 {"share", "share", Column::Kind::percent, 6},
                 {"tflops", "TFLOP/s"}},
                flags.step.json());
    double sum = 0;
    for (const Part& part : training.parts(arena_ctx)) {
        const double ms = median_milliseconds(arena_ctx, sampling, part.work);
        const double in_step = ms * static_cast<double>(part.count);
        sum += in_step;
        const double tflops = part.flops > 0 ? part.flops / ms * 1e-9 : no_value;
        table.add({part.name, part.count, 1e3 * ms, in_step, in_step / step_ms, tflops});
    }
    table.add({"sum", no_value, no_value, sum, sum / step_ms, no_value});
}

Table table_of_steps(const Flags& flags, const Step& first) {
    std::vector<Column> columns{
        {"preset", "preset", Column::Kind::text, 20},       {"batch", "batch", Column::Kind::number, 6},
        {"micro_batch", "micro", Column::Kind::number, 6},  {"dtype", "dtype", Column::Kind::text, 5},
        {"recompute", "recompute", Column::Kind::text, 11}, {"offload", "offload", Column::Kind::text, 9}};
    if (flags.step.json()) columns.push_back({"shape", "shape", Column::Kind::text});
    if (!flags.memory) {
        columns.push_back({"ms_per_step", "ms/step"});
        columns.push_back({"tokens_per_s", "tokens/s"});
        columns.push_back({"tflops", "TFLOP/s"});
        columns.push_back({"mfu", "MFU", Column::Kind::percent, 5});
        columns.push_back({"of_ceiling", "of ceiling", Column::Kind::percent, 10});
    }
    columns.push_back({"activations_mib", "activations MiB", Column::Kind::number, 15});
    columns.push_back({"total_mib", "in all MiB", Column::Kind::number, 10});
    columns.push_back({"host_mib", "host MiB", Column::Kind::number, 8});
    if (!flags.memory) columns.push_back({"how", "how", Column::Kind::text, 1});
    return {std::move(columns), flags.step.json(), concat(first.preset, ": ", shape_of(first.config.model))};
}

/// The cells that identify a row's step. In a text table, the model's shape is in the title instead.
std::vector<Cell> name_cells(const Step& step, bool json) {
    const TrainConfig& config = step.config;
    std::vector<Cell> cells{step.preset,
                            config.batch,
                            config.micro_batch_size(),
                            name_of(config.dtype),
                            name_of(config.training.recompute),
                            name_of(config.offload)};
    if (json) cells.emplace_back(shape_of(config.model));
    return cells;
}

void measure(const Context& ctx, const FittedStep& step, const Flags& flags, const Sampling& sampling,
             double ceiling, Table& table) {
    const TrainConfig& config = step.config;
    const MemoryPlan plan = plan_within(ctx, step.request(ctx), step.budget);
    Training training(ctx, config);
    const Context arena_ctx =
        with_arena_for(ctx, "bench train", [&](const Context& dry) { training.enqueue(dry); });

    StepGraph graph;
    std::string how = concat("threads ", ctx.threads().size());
    if (ctx.device().is_cuda()) how = capture(arena_ctx, config, training, graph);
    if (!step.chosen.empty()) how += concat("; chosen are ", step.chosen);
    // Wall time, because in training the host waits for every step.
    const Clock clock = sampling.clock == Clock::device ? Clock::wall : sampling.clock;
    const double ms =
        median_milliseconds(arena_ctx, {.runs = sampling.runs, .clock = clock, .min_sample_ms = 0}, [&] {
            if (graph.captured()) {
                graph.replay(arena_ctx);
            } else {
                training.enqueue(arena_ctx);
            }
        });
    const double tokens_per_s = static_cast<double>(config.batch * config.model.context) / ms * 1e3;
    const double flops_per_s =
        flops_per_token(config.model, config.model.context, config.adapters) * tokens_per_s;
    const double peak = peak_flops(ctx.device(), step.dtype(), config.tf32);
    std::vector<Cell> row = name_cells(step, flags.step.json());
    row.insert(row.end(), {ms, tokens_per_s, 1e-12 * flops_per_s, peak > 0 ? flops_per_s / peak : no_value,
                           flops_per_s / ceiling, mebibytes(plan.activations), mebibytes(plan.total()),
                           mebibytes(plan.host()), how});
    table.add(row);
    if (flags.breakdown) print_breakdown(ctx, training, flags, sampling, ms);
}

int bench_train(const Flags& flags) {
    const std::vector<Step> steps = flags.step.steps();
    const Context ctx = context_of(steps.front().config);
    check_usage(!flags.cpu_time || (ctx.device().is_cpu() && ctx.threads().size() == 1),
                "--cpu-time: measures one CPU thread only; add --device cpu --threads 1");
    check_usage(ctx.device().is_cuda() || !flags.step.given("cuda-graph"),
                "--cuda-graph: needs a GPU; use --device cuda");
    Sampling sampling = flags.step.sampling();
    if (flags.cpu_time) sampling.clock = Clock::calling_thread;
    Table table = table_of_steps(flags, steps.front());
    std::map<DType, double> ceilings;  // measured once per dtype
    for (const Step& given : steps) {
        const FittedStep step(ctx, given);
        check_usage(
            !flags.breakdown || !has_part(step.config.offload, Offload::weights),
            "--breakdown: with offload weights; expected weights on the device, which the operators read");
        check_usage(
            !flags.breakdown || step.config.adapters.rank == 0,
            "--breakdown: with lora-rank; expected 0, because only layers without adapters are timed");
        const auto [ceiling, is_new] = ceilings.try_emplace(step.dtype());
        if (is_new && !flags.memory)
            ceiling->second = measure_product_ceiling(ctx, step.dtype(), sampling).flops_per_s();
        if (flags.memory) {
            const MemoryPlan plan = plan_memory(ctx, step.request(ctx));
            std::vector<Cell> row = name_cells(step, flags.step.json());
            row.push_back(mebibytes(plan.activations));
            row.push_back(mebibytes(plan.total()));
            row.push_back(mebibytes(plan.host()));
            table.add(row);
        } else {
            measure(ctx, step, flags, sampling, ceiling->second, table);
        }
    }
    return 0;
}

}  // namespace

void add_bench_train(Command& bench) {
    Command command = bench.add_command("train", "Measure time, speed and memory of whole training steps");
    const auto flags = std::make_shared<Flags>(command);
    command.add_switch("--memory", flags->memory, "print only the memory that a step needs");
    command.add_switch("--breakdown", flags->breakdown, "also time every operator of the step alone");
    command.add_switch("--cpu-time", flags->cpu_time,
                       "measure CPU time of the calling thread, for --threads 1 on a busy machine");
    command.set_action([flags] { return bench_train(*flags); });
}

}  // namespace gradtile::cli
