// gradtile models: the published models of every family, and which of them fit a device.
#include <algorithm>
#include <iostream>

#include <gradtile/core/available_memory.h>
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/core/text/formatted.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/tools/bench/measure.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/devices.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/formats/families/published_models.h>
#include <gradtile/tools/models/model_costs.h>

namespace gradtile::cli {
namespace {

constexpr std::int64_t adapter_rank = 8;

struct Flags {
    DeviceChoice device = DeviceChoice::automatic;
    TrainDType dtype = TrainDType::bf16;
    Recompute recompute = Recompute::none;
    WeightFormat frozen = WeightFormat::same;
    std::int64_t context = 2048, batch = 1;
    double gpu_memory = 0;  // in GiB; 0: this machine's device
    bool json = false;
};

/// The device, its memory and its speed.
struct Target {
    Device device = Device::cpu();
    Context dry;
    double memory = 0;  // bytes
    CostConstants constants;
    std::string description;
};

Context planning_context(Device device) {
    const bool can_plan = device.is_cpu() || has_cuda_operators;
    return Context(Device::cpu(), 1).plan(Arena::for_planning(can_plan ? device : Device::cpu()));
}

/// Replaces the rates of an H200 by those of this device. Attention keeps its ratio to the products on a GPU,
/// and has the products' rate on a CPU.
CostConstants measured_constants(Device device, DType dtype) {
    const Context ctx(device);
    const Sampling sampling{.runs = 3};
    const double products = measure_product_ceiling(ctx, dtype, sampling).flops_per_s();
    const double bytes =
        device.is_cpu() ? measure_read_rate(ctx, std::int64_t{1} << 28, sampling) : measure_copy_rate(ctx);
    CostConstants constants = h200_constants();
    const double gpu_ratio = is_16_bit(dtype) ? constants.attention_flops / constants.product_flops
                                              : constants.attention_flops_f32 / constants.product_flops_f32;
    const double attention = device.is_cpu() ? products : products * gpu_ratio;
    constants.product_flops = constants.product_flops_f32 = products;
    constants.attention_flops = constants.attention_flops_f32 = attention;
    constants.memory_bytes = constants.update_bytes = bytes;
    if (device.is_cpu()) constants.block_seconds = 0;
    return constants;
}

Target absent_gpu(double memory) {
    return {.device = Device::cuda(),
            .dry = planning_context(Device::cuda()),
            .memory = memory * gib,
            .constants = h200_constants(),
            .description = "a GPU with the speed of an H200"};
}

Target this_machine(Device device, DType dtype) {
    return {.device = device,
            .dry = planning_context(device),
            .memory = static_cast<double>(available_memory(device)),
            .constants = measured_constants(device, dtype),
            .description = device.is_cpu() ? std::string("this machine's CPU")
                                           : concat("this machine's ", cuda::device_properties(device).name)};
}

Target target_of(const Flags& flags) {
    if (flags.gpu_memory > 0) return absent_gpu(flags.gpu_memory);
    return this_machine(resolve_device(flags.device), storage_dtype(flags.dtype));
}

/// Learned positions are weights, so such a model keeps its context.
ModelConfig planned_config(const PublishedModel& model, std::int64_t context) {
    ModelConfig config = config_of(model);
    if (!adds_embeddings(config.positions)) config.context = std::min(config.context, context);
    return config;
}

TrainConfig training_config(const ModelConfig& model, const Flags& flags, std::int64_t rank) {
    TrainConfig config;
    config.model = model;
    config.training.recompute = flags.recompute;
    config.adapters.rank = rank;
    if (rank > 0) config.adapters.frozen_format = flags.frozen;
    config.dtype = flags.dtype;
    config.batch = flags.batch;
    return config;
}

std::string title_of(const Target& target, const Flags& flags) {
    return concat(target.description, ", ", formatted("%.1f", target.memory / gib), " GiB; ",
                  name_of(flags.dtype), ", ", flags.batch, " x ", flags.context, " tokens, recompute ",
                  name_of(flags.recompute));
}

Table table_of(const Target& target, const Flags& flags) {
    return Table({{"model", "model", Column::Kind::text, 16},
                  {"model_type", "model_type", Column::Kind::text, 11},
                  {"parameters", "parameters", Column::Kind::number, 11},
                  {"context", "context", Column::Kind::number, 7},
                  {"generation_gib", "sample GiB", Column::Kind::number, 10},
                  {"generation_tokens_per_s", "tokens/s", Column::Kind::number, 8},
                  {"lora_gib", "LoRA GiB", Column::Kind::number, 8},
                  {"lora_tokens_per_s", "tokens/s", Column::Kind::number, 8},
                  {"training_gib", "train GiB", Column::Kind::number, 9},
                  {"training_tokens_per_s", "tokens/s", Column::Kind::number, 8}},
                 flags.json, title_of(target, flags));
}

void add_row(Table& table, const PublishedModel& model, const Target& target, const Flags& flags) {
    const ModelConfig config = planned_config(model, flags.context);
    std::vector<Cell> row{model.name, model.family, model.parameters, config.context};
    const auto add = [&](const ModelCost& cost) {
        const double bytes = static_cast<double>(cost.memory);
        row.emplace_back(bytes / gib);
        row.emplace_back(bytes <= target.memory ? cost.tokens_per_second : no_value);
    };
    add(generation_cost(target.dry, target.device, config, storage_dtype(flags.dtype), flags.batch,
                        target.constants));
    for (const std::int64_t rank : {adapter_rank, std::int64_t{0}})
        add(training_cost(target.dry, target.device, training_config(config, flags, rank), target.constants));
    table.add(row);
}

void print_notes(const Target& target, const Flags& flags) {
    std::cout << "A model without tokens/s does not fit. sample: keys and values of " << flags.batch
              << (flags.batch == 1 ? " text" : " texts") << "; LoRA: rank " << adapter_rank
              << (flags.frozen == WeightFormat::same
                      ? std::string()
                      : concat(", the blocks' frozen matrices in ", name_of(flags.frozen)))
              << "; train: all weights, AdamW.\n"
              << (flags.gpu_memory > 0 ? "tokens/s: the cost model of `gradtile plan`, fitted to an H200.\n"
                                       : "tokens/s: the cost model of `gradtile plan`, with this machine's "
                                         "measured rates of products and memory.\n");
    if (target.device.is_cuda() && !has_cuda_operators)
        std::cout << "Activations are those of the CPU's operators, because this build has no CUDA "
                     "operators.\n";
}

int models(const Flags& flags) {
    check_flag("--context", flags.context, {1, model_limits::context.max});
    check_flag("--batch", flags.batch, {1, 4096});
    check_flag("--gpu-memory", flags.gpu_memory, {0, 1e6});
    check_usage(flags.gpu_memory == 0 || flags.device != DeviceChoice::cpu,
                "--gpu-memory: ", flags.gpu_memory,
                " with --device cpu; expected --device cuda or no --gpu-memory");
    const Target target = target_of(flags);
    Table table = table_of(target, flags);
    for (const PublishedModel& model : published_models()) add_row(table, model, target, flags);
    if (!flags.json) print_notes(target, flags);
    return 0;
}

}  // namespace

void add_models(CommandLine& program) {
    const auto flags = std::make_shared<Flags>();
    Command command =
        program.add_command("models", "List published models, and which of them fit this machine");
    add_device_flag(command, flags->device);
    command.add_value("--gpu-memory", flags->gpu_memory,
                      "plan for a GPU that need not be here, with this many GiB; 0: this machine");
    command.add_value("--context", flags->context, "tokens of a text, at most the model's context");
    command.add_value("--batch", flags->batch, "texts at once");
    command.add_value("--dtype", flags->dtype, "type of weights and activations");
    command.add_value("--recompute", flags->recompute, "what training recomputes to save memory");
    command.add_value("--frozen-dtype", flags->frozen, "LoRA: type of the blocks' frozen matrices");
    command.add_switch("--json", flags->json, "print one JSON object per model");
    command.set_action([flags] { return models(*flags); });
}

}  // namespace gradtile::cli
