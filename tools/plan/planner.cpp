#include <gradtile/tools/plan/planner.h>

#include <algorithm>
#include <set>

#include <gradtile/core/available_memory.h>
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/train/config/settings.h>
#include <gradtile/train/memory_choice.h>
#include <gradtile/train/memory_request.h>

namespace gradtile::cli {
namespace {

/// Assumed, not measured: a 400 Gb/s port for each GPU at 90% efficiency, and one hop of a fat tree.
constexpr Link assumed_network{.bytes_per_second = 45e9, .latency = 15e-6};

CostConstants constants_of(const PlanOptions& options) {
    CostConstants constants = h200_constants();
    if (!options.measurements.empty())
        constants = fit_constants(measurements_in(options.measurements), constants).constants;
    if (options.nvlink_bandwidth > 0) constants.nvlink_bytes = 1e9 * options.nvlink_bandwidth;
    return constants;
}

Link network_of(const PlanOptions& options) {
    Link network = assumed_network;
    if (options.network_bandwidth > 0) network.bytes_per_second = 1e9 * options.network_bandwidth;
    if (options.network_latency > 0) network.latency = 1e-6 * options.network_latency;
    return network;
}

}  // namespace

std::vector<Measurement> measurements_in(const std::vector<std::string>& paths) {
    std::vector<Measurement> all;
    for (const std::string& path : paths)
        for (Measurement& measurement : read_measurements(path)) all.push_back(std::move(measurement));
    return all;
}

Planner::Planner(const TrainConfig& run, const PlanOptions& plan_options)
    : config(run),
      options(plan_options),
      constants_(constants_of(options)),
      network_(network_of(options)),
      ctx_(Context(Device::cpu(), 1)
               .plan(Arena::for_planning(has_cuda_operators ? Device::cuda() : Device::cpu()))) {}

MemoryRequest Planner::request() const {
    return memory_request(config, Device::cuda(), options.gpus);
}
MemoryPlan Planner::memory() const {
    return plan_memory(ctx_, request());
}
std::size_t Planner::budget() const {
    return static_cast<std::size_t>(options.gpu_memory * gib);
}
std::string Planner::what_fits() const {
    return what_would_fit(ctx_, request(), budget());
}
std::int64_t Planner::largest_micro_batch() const {
    return largest_micro_batch_that_fits(ctx_, request(), budget());
}

/// Empty when the batch cannot be divided.
std::optional<TrainConfig> Planner::config_for(std::int64_t gpus) const {
    TrainConfig scaled = config;
    if (!options.same_batch) {
        scaled.micro_batch = config.micro_batch_size(options.gpus);
        scaled.batch = config.batch / options.gpus * gpus;
    } else if (config.batch % gpus != 0 || config.batch / gpus % config.micro_batch_size(gpus) != 0) {
        return std::nullopt;
    }
    return scaled;
}

Prediction Planner::predicted(const TrainConfig& scaled, std::int64_t gpus) const {
    const GpuLayout layout(gpus, options.gpus_per_node);
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

std::vector<Prediction> Planner::predictions() const {
    std::set<std::int64_t> counts{1, options.gpus};
    for (std::int64_t n = 2; n < options.gpus; n *= 2) counts.insert(n);
    for (std::int64_t n = options.gpus_per_node; n < options.gpus; n *= 2) counts.insert(n);
    std::vector<Prediction> rows;
    for (const std::int64_t gpus : counts) {
        if (gpus > options.gpus_per_node && gpus % options.gpus_per_node != 0 && gpus != options.gpus)
            continue;
        const std::optional<TrainConfig> scaled_config = config_for(gpus);
        if (!scaled_config) continue;
        Prediction row = predicted(*scaled_config, gpus);
        const Prediction& single_gpu = rows.empty() ? row : rows.front();
        if (single_gpu.layout.gpus() == 1)
            row.efficiency = row.tokens_per_second / static_cast<double>(gpus) / single_gpu.tokens_per_second;
        rows.push_back(row);
    }
    return rows;
}

std::vector<std::int64_t> Planner::zero_levels() const {
    if (options.gpus == 1 || config.given.contains("zero") || config.zero > 0) return {config.zero};
    std::vector<std::int64_t> levels;
    visit_settings(config, [&](const Setting& setting, const auto&) {
        if (setting.name != std::string_view("zero")) return;
        for (std::int64_t zero = 0; static_cast<double>(zero) <= setting.range.max; ++zero)
            levels.push_back(zero);
    });
    return levels;
}

/// With adapters all formats, because a budget chooses none, unless one was given.
std::vector<WeightFormat> Planner::frozen_formats() const {
    std::vector<WeightFormat> formats{config.adapters.frozen_format};
    if (config.adapters.rank == 0 || config.given.contains("frozen-dtype")) return formats;
    for (const auto& [format, name] : EnumNames<WeightFormat>::names)
        if (format != formats.front()) formats.push_back(format);
    return formats;
}

std::vector<WayToFit> Planner::ways_to_fit() const {
    const std::size_t unplanned = unplanned_memory(Device::cuda());
    const std::size_t left = budget() - std::min(budget(), unplanned);
    std::vector<WayToFit> ways;
    for (const std::int64_t zero : zero_levels())
        for (const WeightFormat format : frozen_formats()) {
            TrainConfig run = config;
            run.zero = zero;
            run.adapters.frozen_format = format;
            WayToFit way{.zero = zero, .frozen_format = format};
            try {
                const MemoryChoice choice =
                    choose_within(ctx_, Device::cuda(), run, options.gpus, config.model.prefix, left);
                way.choices = choice.description;
                way.prediction = predicted(choice.config, options.gpus);
            } catch (const Error& error) {
                way.choices = error.what();
            }
            ways.push_back(std::move(way));
        }
    return ways;
}

std::vector<std::string> Planner::notes() const {
    std::vector<std::string> lines = h200_provenance();
    if (!options.measurements.empty())
        lines = {
            "GPUs and the links of a node: fitted to your measurements; constants that these do not "
            "determine are those of H200s"};
    if (options.nvlink_bandwidth > 0) lines.push_back("inside a node: your bandwidth");
    if (options.gpus > options.gpus_per_node)
        lines.push_back(concat(
            "between nodes: ", options.network_bandwidth > 0 ? "your bandwidth" : "assumed 45 GB/s per GPU",
            ", ", options.network_latency > 0 ? "your latency" : "assumed 15 us",
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
            "where a block takes at least the time in which its weights come, and in the update");
    if (has_part(config.offload, Offload::gradients))
        lines.push_back(
            "compute and update: offloaded gradients cross the bus at an assumed 50 GB/s: in each "
            "backward pass, which waits, for the norm and for the update");
    return lines;
}

}  // namespace gradtile::cli
