// gradtile plan: predicts memory, communication and time of a step; needs no GPU.
#include <iostream>

#include <gradtile/core/text/json_value.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/setting_flags.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/plan/fit_tables.h>
#include <gradtile/tools/plan/planner.h>
#include <gradtile/train/config/refused_combinations.h>

namespace gradtile::cli {
namespace {

struct Flags {
    explicit Flags(Command& command) : settings(command, &SettingUsers::plan) {}
    SettingFlags settings;
    std::string model, config_file;
    PlanOptions plan;
    std::vector<std::string> fit, loss;
    bool json = false;
};

TrainConfig config_of(const Flags& flags) {
    TrainConfig config;
    if (!flags.model.empty()) config = rethrow_as_usage_error([&] { return preset(flags.model); });
    if (!flags.config_file.empty()) apply_user_config(config, flags.config_file);
    flags.settings.apply(config);
    if (config.model.vocabulary == 0) config.model.vocabulary = vocabulary_of_characters;
    check_usage(
        config.context_parallel == 1, "context-parallel: ", config.context_parallel,
        "; the cost model has no ring attention, expected 1 (gradtile train --memory plans its memory)");
    rethrow_as_usage_error([&] {
        validate(config, flags.plan.gpus);
        check_used(config, flags.settings.given());
    });
    check_usage(!config.model.prefix,
                "prefix: true; the cost model has causal attention only, expected false");
    check_usage(config.device != DeviceChoice::cpu,
                "device: cpu; expected cuda, because plan predicts GPUs only");
    rethrow_as_usage_error([&] { check_device(config, Device::cuda()); });
    return config;
}

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
    JsonValue row = JsonValue::object(
        {{"zero", way.zero}, {"frozen_dtype", name_of(way.frozen_format)}, {"chosen", way.choices}});
    row.set("prediction", way.prediction ? json_of(*way.prediction) : JsonValue());
    return row;
}

void print_json(const Planner& planner) {
    const MemoryPlan memory = planner.memory();
    std::vector<JsonValue> rows;
    for (const Prediction& row : planner.predictions()) rows.push_back(json_of(row));
    std::vector<JsonValue> ways;
    for (const WayToFit& way : planner.ways_to_fit()) ways.push_back(json_of(way));
    const JsonValue plan =
        JsonValue::object({{"gpus", planner.options.gpus},
                           {"parameters", memory.parameters},
                           {"micro_batch", memory.request.micro_batch},
                           {"accumulation_steps", planner.config.accumulation_steps(planner.options.gpus)},
                           {"memory", JsonValue::object({{"parameters_bytes", memory.values},
                                                         {"masters_bytes", memory.masters},
                                                         {"gradients_bytes", memory.gradients},
                                                         {"optimizer_bytes", memory.optimizer},
                                                         {"activations_bytes", memory.activations},
                                                         {"checkpoint_bytes", memory.snapshot},
                                                         {"graph_bytes", memory.graph},
                                                         {"host_checkpoint_bytes", memory.saved_on_host},
                                                         {"host_bytes", memory.host()},
                                                         {"total_bytes", memory.total()},
                                                         {"used_bytes", memory.used()}})},
                           {"fits", memory.total() <= planner.budget()},
                           {"largest_micro_batch", planner.largest_micro_batch()},
                           {"ways_to_fit", ways},
                           {"predictions", rows},
                           {"notes", planner.notes()}});
    std::cout << plan.dump(2) << '\n';
}

void print_ways_to_fit(const Planner& planner) {
    const bool has_adapters = planner.config.adapters.rank > 0;
    std::vector<Column> columns{{"zero", "zero", Column::Kind::number, 5}};
    if (has_adapters) columns.push_back({"frozen", "frozen", Column::Kind::text, 6});
    columns.insert(columns.end(), {{"gib", "GiB each"},
                                   {"ms", "ms/step"},
                                   {"tokens", "tokens/s", Column::Kind::number, 12},
                                   {"chosen", "with", Column::Kind::text, 4}});
    Table table(std::move(columns), /*json=*/false,
                concat("what --memory-budget ", planner.options.gpu_memory, "GiB chooses for ",
                       planner.options.gpus, planner.options.gpus == 1 ? " GPU" : " GPUs"));
    for (const WayToFit& way : planner.ways_to_fit()) {
        const auto number = [&](auto value_of) {
            return way.prediction ? value_of(*way.prediction) : no_value;
        };
        std::vector<Cell> row{way.zero};
        if (has_adapters) row.emplace_back(name_of(way.frozen_format));
        row.insert(row.end(),
                   {number([](const Prediction& p) { return static_cast<double>(p.memory) / gib; }),
                    number([](const Prediction& p) { return 1e3 * p.cost.seconds(); }),
                    number([](const Prediction& p) { return p.tokens_per_second; }),
                    way.choices.empty() ? "the settings as they are" : way.choices});
        table.add(row);
    }
    std::cout << '\n' << std::flush;
}

void print_plan(const Planner& planner) {
    const TrainConfig& c = planner.config;
    const MemoryPlan memory = planner.memory();  // called before anything is printed, because it may throw
    std::cout << c.batch << " sequences of " << c.model.context << " tokens per step; "
              << planner.options.gpus << (planner.options.gpus == 1 ? " GPU" : " GPUs") << " with "
              << c.accumulation_steps(planner.options.gpus) << " x "
              << c.micro_batch_size(planner.options.gpus) << "; " << name_of(c.dtype) << ", zero " << c.zero
              << '\n'
              << memory << (memory.total() <= planner.budget() ? "fits into " : "does not fit into ")
              << planner.options.gpu_memory << " GiB: " << planner.what_fits() << "\n\n"
              << std::flush;
    print_ways_to_fit(planner);

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
        table.add({p.layout.gpus(), p.layout.nodes(), p.batch, static_cast<double>(p.memory) / gib,
                   1e3 * p.cost.seconds(), 1e3 * p.cost.compute, 1e3 * p.cost.exposed, 1e3 * p.cost.update,
                   p.tokens_per_second, p.efficiency, 1e-6 * p.cost.wire.total(),
                   1e-6 * p.cost.wire.network});
    std::cout
        << "MB sent: per GPU and step; network: the part sent between nodes; exposed: ms of communication "
           "that do not overlap with computation\n";
    for (const std::string& note : planner.notes()) std::cout << "- " << note << '\n';
}

void plan(const Flags& flags) {
    constexpr Range gpus{1, 1e6}, link{0, 1e9};
    check_flag("--gpus", flags.plan.gpus, gpus);
    check_flag("--gpus-per-node", flags.plan.gpus_per_node, gpus);
    // The constructor throws unless the GPUs fill all nodes.
    rethrow_as_usage_error([&] { (void)GpuLayout(flags.plan.gpus, flags.plan.gpus_per_node); });
    check_flag("--gpu-memory", flags.plan.gpu_memory, {.min = 0, .max = 1e6, .min_is_open = true});
    check_flag("--nvlink-bandwidth", flags.plan.nvlink_bandwidth, link);
    check_flag("--network-bandwidth", flags.plan.network_bandwidth, link);
    check_flag("--network-latency", flags.plan.network_latency, link);
    const Planner planner(config_of(flags), flags.plan);
    if (flags.json) {
        print_json(planner);
    } else {
        print_plan(planner);
    }
}

}  // namespace

void add_plan(CommandLine& program) {
    Command command =
        program.add_command("plan", "Predict memory, communication and throughput; needs no GPU");
    const auto flags = std::make_shared<Flags>(command);
    std::string presets = "settings to start from:";
    for (const std::string& name : preset_names()) presets += " " + name;
    command.add_value("--model", flags->model, presets);
    command.add_path("--config", flags->config_file, "JSON file of settings, with the names of the flags");
    command.add_value("--gpus", flags->plan.gpus, "GPUs that share the batch");
    command.add_value("--gpus-per-node", flags->plan.gpus_per_node, "GPUs of a node, which NVLink connects");
    command.add_value("--gpu-memory", flags->plan.gpu_memory, "GiB of each GPU");
    command.add_value("--nvlink-bandwidth", flags->plan.nvlink_bandwidth,
                      "GB/s of a collective per GPU inside a node; 0: the fitted value");
    command.add_value("--network-bandwidth", flags->plan.network_bandwidth,
                      "GB/s of a collective per GPU between nodes; 0: assume 45");
    command.add_value("--network-latency", flags->plan.network_latency,
                      "microseconds per message between nodes; 0: assume 15");
    command.add_switch("--same-batch", flags->plan.same_batch,
                       "compare GPU counts at the same batch instead of the same batch per GPU");
    using Paths = std::vector<std::string>;
    const auto named = [](const char* flag, const Paths& paths) {
        check_usage(std::ranges::find(paths, "") == paths.end(), flag,
                    ": ''; expected a file of measurements");
        return paths;
    };
    command.add_value<Paths>(
        "--measurements", "files of measurements: predict with constants fitted to them",
        [=](const Paths& paths) { flags->plan.measurements = named("--measurements", paths); });
    command.add_value<Paths>("--fit",
                             "files of measurements: only print the fitted constants and their deviations",
                             [=](const Paths& paths) { flags->fit = named("--fit", paths); });
    command.add_list(
        "--loss", flags->loss,
        "directories of finished runs, 6 or more: only predict the validation loss, by a law fitted to "
        "them; tokens are steps x batch x context");
    command.add_switch("--json", flags->json,
                       "print one JSON object; with --fit and --loss one for each row");
    command.set_action([flags] {
        check_usage(flags->fit.empty() || flags->loss.empty(), "--fit and --loss: expected only one of them");
        if (!flags->loss.empty()) {
            print_predicted_loss(config_of(*flags), flags->loss, flags->json);
        } else if (!flags->fit.empty()) {
            print_cost_fit(flags->fit, flags->json);
        } else {
            plan(*flags);
        }
        return 0;
    });
}

}  // namespace gradtile::cli
