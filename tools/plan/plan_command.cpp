// gradtile plan: predicts memory, communication and time of a step; needs no GPU.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <set>

#include <gradtile/core/available_memory.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/setting_flags.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/plan/cost_fit.h>
#include <gradtile/tools/plan/trained_runs.h>
#include <gradtile/train/config/refused_combinations.h>
#include <gradtile/train/memory_choice.h>
#include <gradtile/train/memory_request.h>

namespace gradtile::cli {
namespace {

constexpr double gib = 1 << 30;

struct Flags {
    explicit Flags(Command& command) : settings(command, &SettingUsers::plan) {}
    SettingFlags settings;
    std::string model, config_file;
    std::int64_t gpus = 1, gpus_per_node = 8;
    double gpu_memory = 139;  // in GiB; the default is an H200's memory
    // GB/s and microseconds; 0: the fitted or assumed value.
    double nvlink_bandwidth = 0, network_bandwidth = 0, network_latency = 0;
    std::vector<std::string> fit, measurements, loss;
    bool json = false, same_batch = false;
};

/// Counting a GPU's activations needs the CUDA operators, which a build may lack.
constexpr bool has_cuda_operators = GRADTILE_HAVE_CUDA;

/// Assumed, not measured: a 400 Gb/s port for each GPU at 90% efficiency, and one hop of a fat tree.
constexpr Link assumed_network{.bytes_per_second = 45e9, .latency = 15e-6};

/// The vocabulary size for models that set none, because a run computes it from the text: the character count
/// in tiny Shakespeare.
constexpr std::int64_t characters = 65;

TrainConfig config_of(const Flags& flags) {
    TrainConfig config;
    if (!flags.model.empty()) config = rethrow_as_usage_error([&] { return preset(flags.model); });
    if (!flags.config_file.empty()) apply_user_config(config, flags.config_file);
    flags.settings.apply(config);
    if (config.model.vocabulary == 0) config.model.vocabulary = characters;
    check_usage(
        config.context_parallel == 1, "context-parallel: ", config.context_parallel,
        "; the cost model has no ring attention, expected 1 (gradtile train --memory plans its memory)");
    rethrow_as_usage_error([&] { validate(config, flags.gpus); });
    check_usage(config.adapters.rank == 0, "lora-rank: ", config.adapters.rank,
                "; the cost model has no adapters, expected 0 (gradtile train --memory plans their memory)");
    check_usage(!config.model.prefix,
                "prefix: true; the cost model has causal attention only, expected false");
    check_usage(config.device != DeviceChoice::cpu,
                "device: cpu; expected cuda, because plan predicts GPUs only");
    rethrow_as_usage_error([&] { check_device(config, Device::cuda()); });
    return config;
}

std::vector<Measurement> measurements_in(const std::vector<std::string>& paths) {
    std::vector<Measurement> all;
    for (const std::string& path : paths)
        for (Measurement& measurement : read_measurements(path)) all.push_back(std::move(measurement));
    return all;
}

CostConstants constants_of(const Flags& flags) {
    CostConstants constants = h200_constants();
    if (!flags.measurements.empty())
        constants = fit_constants(measurements_in(flags.measurements), constants).constants;
    if (flags.nvlink_bandwidth > 0) constants.nvlink_bytes = 1e9 * flags.nvlink_bandwidth;
    return constants;
}

Link network_of(const Flags& flags) {
    Link network = assumed_network;
    if (flags.network_bandwidth > 0) network.bytes_per_second = 1e9 * flags.network_bandwidth;
    if (flags.network_latency > 0) network.latency = 1e-6 * flags.network_latency;
    return network;
}

/// The prediction for a run on `layout`.
struct Prediction {
    GpuLayout layout;
    std::int64_t batch;
    std::size_t memory;
    StepCost cost;
    double tokens_per_second;
    double efficiency = no_value;  ///< tokens_per_second / (GPUs * tokens_per_second with one GPU)
};

/// The settings that `gradtile train --memory-budget` chooses for a ZeRO level.
struct WayToFit {
    std::int64_t zero;
    std::string choices;  ///< or, without a prediction, why nothing fits
    std::optional<Prediction> prediction = std::nullopt;
};

class Planner {
  public:
    explicit Planner(const Flags& flags)
        : config(config_of(flags)),
          flags_(flags),
          constants_(constants_of(flags)),
          network_(network_of(flags)),
          ctx_(Context(Device::cpu(), 1)
                   .plan(Arena::for_planning(has_cuda_operators ? Device::cuda() : Device::cpu()))) {}

    MemoryPlan memory() const {
        return plan_memory(ctx_, memory_request(config, Device::cuda(), flags_.gpus));
    }
    std::size_t budget() const { return static_cast<std::size_t>(flags_.gpu_memory * gib); }
    std::string what_fits() const {
        return what_would_fit(ctx_, memory_request(config, Device::cuda(), flags_.gpus), budget());
    }
    std::int64_t largest_micro_batch() const {
        return largest_micro_batch_that_fits(ctx_, memory_request(config, Device::cuda(), flags_.gpus),
                                             budget());
    }

    /// Predicts for one GPU, for each power of two below flags_.gpus that fills whole nodes, and for
    /// flags_.gpus.
    std::vector<Prediction> predictions() const {
        std::set<std::int64_t> counts{1, flags_.gpus};
        for (std::int64_t n = 2; n < flags_.gpus; n *= 2) counts.insert(n);
        for (std::int64_t n = flags_.gpus_per_node; n < flags_.gpus; n *= 2) counts.insert(n);
        std::vector<Prediction> rows;
        for (const std::int64_t gpus : counts) {
            if (gpus > flags_.gpus_per_node && gpus % flags_.gpus_per_node != 0 && gpus != flags_.gpus)
                continue;
            const std::optional<TrainConfig> scaled_config = config_for(gpus);
            if (!scaled_config) continue;
            Prediction row = predicted(*scaled_config, gpus);
            const Prediction& single_gpu = rows.empty() ? row : rows.front();
            if (single_gpu.layout.gpus() == 1)
                row.efficiency =
                    row.tokens_per_second / static_cast<double>(gpus) / single_gpu.tokens_per_second;
            rows.push_back(row);
        }
        return rows;
    }

    /// Returns how the run fits the GPUs' memory, for each ZeRO level unless one was given.
    std::vector<WayToFit> ways_to_fit() const {
        const std::size_t unplanned = unplanned_memory(Device::cuda());
        const std::size_t left = budget() - std::min(budget(), unplanned);
        std::vector<WayToFit> ways;
        for (const std::int64_t zero : zero_levels()) {
            TrainConfig run = config;
            run.zero = zero;
            try {
                const MemoryChoice choice = choose_within(ctx_, run, flags_.gpus, config.model.prefix, left);
                ways.push_back({zero, choice.description, predicted(choice.config, flags_.gpus)});
            } catch (const Error& error) {
                ways.push_back({zero, error.what()});
            }
        }
        return ways;
    }

    std::vector<std::string> notes() const {
        std::vector<std::string> lines = h200_provenance();
        if (!flags_.measurements.empty())
            lines = {
                "GPUs and the links of a node: fitted to your measurements; constants that these do not "
                "determine are those of H200s"};
        if (flags_.nvlink_bandwidth > 0) lines.push_back("inside a node: your bandwidth");
        if (flags_.gpus > flags_.gpus_per_node)
            lines.push_back(
                concat("between nodes: ",
                       flags_.network_bandwidth > 0 ? "your bandwidth" : "assumed 45 GB/s per GPU", ", ",
                       flags_.network_latency > 0 ? "your latency" : "assumed 15 us",
                       "; only up to 4 GPUs of one node were measured"));
        if (!has_cuda_operators)
            lines.push_back(
                "activations: those of the CPU's operators, because this build has no CUDA operators");
        if (config.optimizer != kind_of<AdamWSettings>)
            lines.push_back(
                "update: bytes of weights, gradients and state; matrix products, if the optimizer has them, "
                "at the rate of the model's");
        if (has_part(config.offload, Offload::optimizer))
            lines.push_back(
                "update: the offloaded state crosses the bus at an assumed 50 GB/s in each direction");
        if (has_part(config.offload, Offload::residuals))
            lines.push_back(
                "compute: a block takes at least the time in which its residuals cross the bus, at an "
                "assumed 50 GB/s");
        if (has_part(config.offload, Offload::weights))
            lines.push_back(
                "compute and update: offloaded weights cross the bus at an assumed 50 GB/s: in each pass, "
                "where a "
                "block takes at least the time in which its weights come, and in the update");
        if (has_part(config.offload, Offload::gradients))
            lines.push_back(
                "compute and update: offloaded gradients cross the bus at an assumed 50 GB/s: in each "
                "backward pass, which waits, for the norm and for the update");
        return lines;
    }

    const TrainConfig config;

  private:
    /// The settings for `gpus` GPUs: with the same batch per GPU, or with --same-batch the same total batch.
    /// Empty when the batch cannot be divided.
    std::optional<TrainConfig> config_for(std::int64_t gpus) const {
        TrainConfig scaled = config;
        if (!flags_.same_batch) {
            scaled.micro_batch = config.micro_batch_size(flags_.gpus);
            scaled.batch = config.batch / flags_.gpus * gpus;
        } else if (config.batch % gpus != 0 || config.batch / gpus % config.micro_batch_size(gpus) != 0) {
            return std::nullopt;
        }
        return scaled;
    }

    std::vector<std::int64_t> zero_levels() const {
        if (flags_.gpus == 1 || config.given.contains("zero") || config.zero > 0) return {config.zero};
        std::vector<std::int64_t> levels;
        visit_settings(config, [&](const Setting& setting, const auto&) {
            if (setting.name != std::string_view("zero")) return;
            for (std::int64_t zero = 0; static_cast<double>(zero) <= setting.range.max; ++zero)
                levels.push_back(zero);
        });
        return levels;
    }

    Prediction predicted(const TrainConfig& scaled, std::int64_t gpus) const {
        const GpuLayout layout(gpus, flags_.gpus_per_node);
        const MemoryPlan memory = plan_memory(ctx_, memory_request(scaled, Device::cuda(), gpus));
        ParallelStep step = parallel_step(scaled, gpus);
        step.work.residual_bytes_of_block =
            static_cast<double>(memory.residuals) / static_cast<double>(step.layers);
        step.work.weight_bytes_of_block =
            static_cast<double>(memory.offloaded_values) / static_cast<double>(step.layers);
        if (has_part(scaled.offload, Offload::gradients))
            step.work.gradient_bytes_of_block =
                static_cast<double>(memory.gradient_sums) / static_cast<double>(step.layers);
        const StepCost cost =
            step_cost(step, constants_, layout, {.nvlink = constants_.nvlink(), .network = network_});
        const double tokens = static_cast<double>(scaled.batch * scaled.model.context);
        return {.layout = layout,
                .batch = scaled.batch,
                .memory = memory.total(),
                .cost = cost,
                .tokens_per_second = tokens / cost.seconds()};
    }

    const Flags& flags_;
    CostConstants constants_;
    Link network_;
    Context ctx_;
};

JsonValue json_of(const Prediction& p) {
    return JsonValue::object({{"gpus", p.layout.gpus()},
                              {"nodes", p.layout.nodes()},
                              {"batch", p.batch},
                              {"memory_bytes", p.memory},
                              {"ms_per_step", 1e3 * p.cost.seconds()},
                              {"compute_ms", 1e3 * p.cost.compute},
                              {"exposed_ms", 1e3 * p.cost.exposed},
                              {"update_ms", 1e3 * p.cost.update},
                              {"tokens_per_s", p.tokens_per_second},
                              {"efficiency", p.efficiency},
                              {"wire_bytes", p.cost.wire.total()},
                              {"network_bytes", p.cost.wire.network}});
}

JsonValue json_of(const WayToFit& way) {
    JsonValue row = JsonValue::object({{"zero", way.zero}, {"chosen", way.choices}});
    row.set("prediction", way.prediction ? json_of(*way.prediction) : JsonValue());
    return row;
}

void print_json(const Planner& planner, const Flags& flags) {
    const MemoryPlan memory = planner.memory();
    std::vector<JsonValue> rows;
    for (const Prediction& row : planner.predictions()) rows.push_back(json_of(row));
    std::vector<JsonValue> ways;
    for (const WayToFit& way : planner.ways_to_fit()) ways.push_back(json_of(way));
    const JsonValue plan =
        JsonValue::object({{"gpus", flags.gpus},
                           {"parameters", memory.parameters},
                           {"micro_batch", memory.request.micro_batch},
                           {"accumulation_steps", planner.config.accumulation_steps(flags.gpus)},
                           {"memory", JsonValue::object({{"parameters_bytes", memory.values},
                                                         {"masters_bytes", memory.masters},
                                                         {"gradients_bytes", memory.gradients},
                                                         {"optimizer_bytes", memory.optimizer},
                                                         {"activations_bytes", memory.activations},
                                                         {"checkpoint_bytes", memory.snapshot},
                                                         {"host_bytes", memory.host()},
                                                         {"total_bytes", memory.total()}})},
                           {"fits", memory.total() <= planner.budget()},
                           {"largest_micro_batch", planner.largest_micro_batch()},
                           {"ways_to_fit", ways},
                           {"predictions", rows},
                           {"notes", planner.notes()}});
    std::cout << plan.dump(2) << '\n';
}

void print_ways_to_fit(const Planner& planner, const Flags& flags) {
    Table table({{"zero", "zero", Column::Kind::number, 5},
                 {"gib", "GiB each"},
                 {"ms", "ms/step"},
                 {"tokens", "tokens/s", Column::Kind::number, 12},
                 {"chosen", "with", Column::Kind::text, 4}},
                /*json=*/false,
                concat("what --memory-budget ", flags.gpu_memory, "GiB chooses for ", flags.gpus,
                       flags.gpus == 1 ? " GPU" : " GPUs"));
    for (const WayToFit& way : planner.ways_to_fit()) {
        const auto number = [&](auto value_of) {
            return way.prediction ? value_of(*way.prediction) : no_value;
        };
        table.add({static_cast<double>(way.zero),
                   number([](const Prediction& p) { return static_cast<double>(p.memory) / gib; }),
                   number([](const Prediction& p) { return 1e3 * p.cost.seconds(); }),
                   number([](const Prediction& p) { return p.tokens_per_second; }),
                   way.choices.empty() ? "the settings as they are" : way.choices});
    }
    std::cout << '\n' << std::flush;
}

void print_plan(const Planner& planner, const Flags& flags) {
    const TrainConfig& c = planner.config;
    const MemoryPlan memory = planner.memory();  // called before anything is printed, because it may throw
    std::cout << c.batch << " sequences of " << c.model.context << " tokens per step; " << flags.gpus
              << (flags.gpus == 1 ? " GPU" : " GPUs") << " with " << c.accumulation_steps(flags.gpus) << " x "
              << c.micro_batch_size(flags.gpus) << "; " << name_of(c.dtype) << ", zero " << c.zero << '\n'
              << memory << (memory.total() <= planner.budget() ? "fits into " : "does not fit into ")
              << flags.gpu_memory << " GiB: " << planner.what_fits() << "\n\n"
              << std::flush;
    print_ways_to_fit(planner, flags);

    Table table({{"gpus", "GPUs", Column::Kind::number, 6},
                 {"nodes", "nodes", Column::Kind::number, 6},
                 {"batch", "batch", Column::Kind::number, 7},
                 {"gib", "GiB each"},
                 {"ms", "ms/step"},
                 {"compute", "compute"},
                 {"exposed", "exposed"},
                 {"update", "update", Column::Kind::number, 7},
                 {"tokens", "tokens/s", Column::Kind::number, 12},
                 {"efficiency", "scaling", Column::Kind::percent, 7},
                 {"wire", "MB sent"},
                 {"network", "network", Column::Kind::number, 8}},
                /*json=*/false);
    for (const Prediction& p : planner.predictions())
        table.add({static_cast<double>(p.layout.gpus()), static_cast<double>(p.layout.nodes()),
                   static_cast<double>(p.batch), static_cast<double>(p.memory) / gib, 1e3 * p.cost.seconds(),
                   1e3 * p.cost.compute, 1e3 * p.cost.exposed, 1e3 * p.cost.update, p.tokens_per_second,
                   p.efficiency, 1e-6 * p.cost.wire.total(), 1e-6 * p.cost.wire.network});
    std::cout
        << "MB sent: per GPU and step; network: the part sent between nodes; exposed: ms of communication "
           "that do not overlap with computation\n";
    for (const std::string& note : planner.notes()) std::cout << "- " << note << '\n';
}

int plan(const Flags& flags) {
    constexpr Range gpus{1, 1e6}, link{0, 1e9};
    check_flag("--gpus", flags.gpus, gpus);
    check_flag("--gpus-per-node", flags.gpus_per_node, gpus);
    // The constructor throws unless the GPUs fill all nodes.
    rethrow_as_usage_error([&] { (void)GpuLayout(flags.gpus, flags.gpus_per_node); });
    check_flag("--gpu-memory", flags.gpu_memory, {.min = 0, .max = 1e6, .min_is_open = true});
    check_flag("--nvlink-bandwidth", flags.nvlink_bandwidth, link);
    check_flag("--network-bandwidth", flags.network_bandwidth, link);
    check_flag("--network-latency", flags.network_latency, link);
    const Planner planner(flags);
    if (flags.json) {
        print_json(planner, flags);
    } else {
        print_plan(planner, flags);
    }
    return 0;
}

/// Prints the constants that fit the measurements best, and each measurement's deviation.
int fit(const Flags& flags) {
    const std::vector<Measurement> measurements = measurements_in(flags.fit);
    const CostConstants shipped = h200_constants();
    const CostFit fit = fit_constants(measurements, shipped);

    Table constants({{"constant", "constant", Column::Kind::text, 20},
                     {"value", "fitted"},
                     {"unit", "unit", Column::Kind::text, 8},
                     {"shipped", "shipped"}},
                    flags.json);
    std::vector<double> shipped_values;
    visit_constants(shipped, [&](const char*, double value, double scale, const char*) {
        shipped_values.push_back(value / scale);
    });
    std::size_t i = 0;
    visit_constants(fit.constants, [&](const char* name, double value, double scale, const char* unit) {
        const bool determined =
            std::find(fit.undetermined.begin(), fit.undetermined.end(), name) == fit.undetermined.end();
        constants.add({name, determined ? value / scale : no_value, unit, shipped_values[i++]});
    });
    if (!flags.json) std::printf("\n");
    Table table({{"what", "timed", Column::Kind::text, 14},
                 {"gpus", "GPUs", Column::Kind::number, 5},
                 {"description", "of", Column::Kind::text, 63},
                 {"weight", "weight", Column::Kind::number, 6},
                 {"ms", "ms"},
                 {"predicted_ms", "predicted"},
                 {"deviation_percent", "off by %"}},
                flags.json);
    for (const Measurement& m : measurements) {
        const double predicted = predicted_ms(m, fit.constants);
        table.add({std::string(name_of(m.what)), static_cast<double>(m.gpus), description_of(m), m.weight,
                   m.ms, predicted, 100 * (predicted / m.ms - 1)});
    }
    return 0;
}

/// Fits the law to finished runs, and prints its losses for them and for the run that the other flags
/// describe.
int predict_loss(const Flags& flags) {
    const TrainConfig config = config_of(flags);
    const double weights = matrix_weights(config.model);
    const double tokens = rethrow_as_usage_error([&] { return training_tokens(config); });
    const std::vector<TrainedRun> runs = read_trained_runs(flags.loss);
    const LossPrediction prediction = predict_loss(runs, weights, tokens);
    const LossLaw& law = prediction.law;
    Table table({{"run", "run", Column::Kind::text, 40},
                 {"weights", "M weights"},
                 {"tokens", "M tokens"},
                 {"loss", "loss", Column::Kind::number, 8},
                 {"predicted", "law", Column::Kind::number, 8},
                 {"error", "+-", Column::Kind::number, 8}},
                flags.json);
    for (const TrainedRun& run : runs)
        table.add({run.name, 1e-6 * run.weights, 1e-6 * run.tokens, run.loss, law(run.weights, run.tokens),
                   no_value});
    table.add({std::string("predicted"), 1e-6 * weights, 1e-6 * tokens, no_value, prediction.loss,
               prediction.error});
    if (flags.json) return 0;
    const auto ratio = [&](double value, double TrainedRun::*member) {
        return value / std::ranges::max(runs, {}, member).*member;
    };
    std::printf(
        "loss = %.4g + %.4g / N^%.3f + %.4g / D^%.3f, N the weights of the blocks and D the tokens; the runs "
        "deviate by %.2f%%\n"
        "predicted: %.4f +- %.4f (95%%) for %.3g times the largest run's weights and %.3g times the "
        "longest's tokens\n",
        law.irreducible, law.weight_term, law.weight_exponent, law.token_term, law.token_exponent,
        100 * prediction.deviation, prediction.loss, prediction.error, ratio(weights, &TrainedRun::weights),
        ratio(tokens, &TrainedRun::tokens));
    return 0;
}

}  // namespace

void add_plan(CommandLine& program) {
    Command command =
        program.add_command("plan", "Predict memory, communication and throughput; needs no GPU");
    const auto flags = std::make_shared<Flags>(command);
    std::string presets = "settings to start from:";
    for (const std::string& name : preset_names()) presets += " " + name;
    command.add_value("--model", flags->model, presets);
    command.add_value<std::string>("--config", "JSON file of settings, with the names of the flags",
                                   [flags](const std::string& path) {
                                       check(!path.empty(), "--config '': expected a path");
                                       flags->config_file = path;
                                   });
    command.add_value("--gpus", flags->gpus, "GPUs that share the batch");
    command.add_value("--gpus-per-node", flags->gpus_per_node, "GPUs of a node, which NVLink connects");
    command.add_value("--gpu-memory", flags->gpu_memory, "GiB of each GPU");
    command.add_value("--nvlink-bandwidth", flags->nvlink_bandwidth,
                      "GB/s of a collective per GPU inside a node; 0: the fitted value");
    command.add_value("--network-bandwidth", flags->network_bandwidth,
                      "GB/s of a collective per GPU between nodes; 0: assume 45");
    command.add_value("--network-latency", flags->network_latency,
                      "microseconds per message between nodes; 0: assume 15");
    command.add_switch("--same-batch", flags->same_batch,
                       "compare GPU counts at the same batch instead of the same batch per GPU");
    using Paths = std::vector<std::string>;
    command.add_value<Paths>("--measurements", "files of measurements: predict with constants fitted to them",
                             [flags](const Paths& paths) { flags->measurements = paths; });
    command.add_value<Paths>("--fit",
                             "files of measurements: only print the fitted constants and their deviations",
                             [flags](const Paths& paths) { flags->fit = paths; });
    command.add_list(
        "--loss", flags->loss,
        "directories of finished runs, 6 or more: only predict the validation loss, by a law fitted to "
        "them; tokens are steps x batch x context");
    command.add_switch("--json", flags->json,
                       "print one JSON object; with --fit and --loss one for each row");
    command.set_action([flags] {
        check_usage(flags->fit.empty() || flags->loss.empty(), "--fit and --loss: expected only one of them");
        if (!flags->loss.empty()) return predict_loss(*flags);
        return flags->fit.empty() ? plan(*flags) : fit(*flags);
    });
}

}  // namespace gradtile::cli
