#include <gradtile/train/memory_choice.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include <gradtile/core/available_memory.h>
#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/train/memory_request.h>

namespace gradtile {
namespace {

/// Returns all values of a setting, or the present one if it must stay.
template <NamedEnum Enum>
std::vector<Enum> values_of(Enum present, bool is_free) {
    if (!is_free) return {present};
    std::vector<Enum> values;
    for (const auto& [value, name] : EnumNames<Enum>::names) values.push_back(value);
    return values;
}

bool is_valid(const TrainConfig& config, std::int64_t ranks) {
    try {
        validate(config, ranks);
        return true;
    } catch (const Error&) {
        return false;
    }
}

/// The whole part of the batch, and then each time the largest divisor that is at most half of the last.
std::vector<std::int64_t> micro_batches(std::int64_t sequences) {
    std::vector<std::int64_t> sizes{sequences};
    while (sizes.back() > 1) {
        std::int64_t size = sizes.back() / 2;
        while (sequences % size != 0) --size;
        sizes.push_back(size);
    }
    return sizes;
}

std::string short_size(std::size_t bytes) {
    constexpr std::size_t mebibyte = 1 << 20;
    return bytes < 10 * mebibyte ? concat(bytes >> 10, " KiB") : concat(bytes / mebibyte, " MiB");
}

/// Formats of the state that round, so that they change results.
struct RoundedFormats {
    MomentFormat moments;
    TrainDType gradients;
};

class Chooser {
  public:
    Chooser(const Context& ctx, Device device, const TrainConfig& config, std::int64_t ranks, bool row_ranges)
        : dry_(ctx.plan(Arena::for_planning(ctx.device()))),
          device_(device),
          config_(config),
          ranks_(ranks),
          row_ranges_(row_ranges),
          defaults_(to_json(TrainConfig())),
          present_(to_json(config)) {}

    /// Returns the settings with these formats that need not stay, in the order of preference among equally
    /// fast ones.
    std::vector<TrainConfig> candidates(const RoundedFormats& formats) const {
        const bool on_gpu = device_.is_cuda();
        const std::vector<std::int64_t> sizes = is_free("micro-batch")
                                                    ? micro_batches(config_.micro_batch_size(ranks_))
                                                    : std::vector{config_.micro_batch};
        std::vector<TrainConfig> all;
        TrainConfig c = config_;
        c.moment_dtype = formats.moments;
        c.gradient_dtype = formats.gradients;
        for (const Offload offload : values_of(config_.offload, on_gpu && is_free("offload")))
            for (const MasterFormat masters : values_of(config_.masters, is_free("masters")))
                for (const Recompute recompute : values_of(config_.training.recompute, is_free("recompute")))
                    for (const std::int64_t size : sizes) {
                        c.offload = offload;
                        c.masters = masters;
                        c.training.recompute = recompute;
                        c.micro_batch = size == config_.micro_batch_size(ranks_) ? config_.micro_batch : size;
                        if (is_valid(c, ranks_)) all.push_back(c);
                    }
        return all;
    }
    /// Returns the formats that need not stay, in the order in which they are tried. Moments keep their
    /// errors from step to step, sums of gradients do not.
    std::vector<RoundedFormats> rounded_formats() const {
        std::vector<RoundedFormats> all;
        for (const MomentFormat moments : values_of(config_.moment_dtype, is_free("moment-dtype")))
            for (const TrainDType gradients : values_of(config_.gradient_dtype, is_free("gradient-dtype")))
                all.push_back({moments, gradients});
        return all;
    }

    MemoryRequest request_of(const TrainConfig& config) const {
        MemoryRequest request = memory_request(config, device_, ranks_);
        request.row_ranges = row_ranges_;
        return request;
    }

    /// Equals plan_memory() of the settings. Only recompute, micro-batch, the gradients' dtype and what
    /// passes offload change a pass, and only the other settings and that dtype the optimizer, so the numbers
    /// of dry runs are combined.
    MemoryPlan plan_of(const TrainConfig& config) {
        MemoryPlan plan = pass_plan(config);
        const MemoryPlan& state = state_plan(config);
        plan.request = request_of(config);
        plan.masters = state.masters;
        plan.optimizer = state.optimizer;
        plan.snapshot = state.snapshot;
        plan.saved_on_host = state.saved_on_host;
        plan.shard_copies = state.shard_copies;
        return plan;
    }

    /// The time of a step in units of the time that its floating-point operations take. The constants say
    /// only in which order the choices are tried; `gradtile plan` has a model of a GPU.
    double relative_time(const TrainConfig& config, const MemoryPlan& plan) const {
        // 124M parameters on an H200, docs/parallel_cost_model.md: 113.1, 116.1 and 132.9 ms.
        constexpr double recompute_factors[] = {1.0, 1.03, 1.18};
        // A micro-step also reads the weights and adds to the gradients: 14 bytes a parameter, in addition to
        // 6 operations per parameter and token.
        const double operations_per_byte = device_.is_cuda() ? 200.0 : 20.0;
        const double tokens_of_passes = 14.0 * operations_per_byte / 6.0;
        constexpr double bus_bytes = 5e10, flops = 5e14;  // per second: 16 lanes of PCIe 5, a large GPU
        const auto tokens = [&](std::int64_t sequences) {
            return static_cast<double>(sequences * config.model.context);
        };
        const std::int64_t micro_batch = config.micro_batch_size(ranks_);
        const double micro_steps = 1.0 + tokens_of_passes / tokens(micro_batch);
        const double passes =
            recompute_factors[static_cast<std::size_t>(config.training.recompute)] * micro_steps;
        const auto bus = [&](std::size_t bytes, std::int64_t sequences) {
            return static_cast<double>(bytes) / bus_bytes /
                   (6.0 * static_cast<double>(plan.parameters) * tokens(sequences) / flops);
        };
        // Residuals leave during the forward pass, a third of the operations, and return during backward.
        // Both passes bring the weights.
        const double residuals = bus(plan.residuals, micro_batch),
                     weights = bus(plan.offloaded_values, micro_batch), forward = micro_steps / 3.0;
        const double waits = std::max(0.0, std::max(residuals, weights) - forward) +
                             std::max(0.0, residuals + weights - (passes - forward));
        // A micro-step's gradients leave during backward, which waits for them.
        const std::int64_t batch = micro_batch * config.accumulation_steps(ranks_);
        // An update changes no frozen values.
        std::size_t crossing_in_update = config.adapters.rank > 0 ? 0 : plan.offloaded_values;
        double sums = 0.0;
        if (has_part(config.offload, Offload::gradients)) {
            sums = bus(plan.gradient_sums, micro_batch);
            crossing_in_update += 2 * plan.gradient_sums;  // by the norm, too
        }
        if (has_part(config.offload, Offload::optimizer)) crossing_in_update += plan.masters + plan.optimizer;
        return passes + waits + sums + bus(crossing_in_update, batch);
    }

    /// Describes the settings of `chosen` that are not those of the run.
    std::string description(const TrainConfig& chosen) {
        const MemoryPlan plan = plan_of(chosen);
        const double time = relative_time(chosen, plan);
        std::string line;
        const auto describe = [&](const char* name, const char* note, auto&& restore) {
            const JsonValue value = to_json(chosen)[name];
            if (value == present_[name]) return;
            TrainConfig without = chosen;
            restore(without);
            const MemoryPlan larger = plan_of(without);
            const double cost = 100.0 * (time / relative_time(without, larger) - 1.0);
            line += concat(line.empty() ? "" : ", ", name, ' ',
                           value.is_string() ? value.get<std::string>() : value.dump(), " (saves ",
                           short_size(larger.total() - plan.total()), ", ",
                           cost < 0.5 ? std::string("costs no time")
                                      : concat("costs about ", std::lround(cost), "% time"),
                           note, ')');
        };
        describe("recompute", "", [&](TrainConfig& c) { c.training.recompute = config_.training.recompute; });
        describe("micro-batch", "", [&](TrainConfig& c) { c.micro_batch = config_.micro_batch; });
        describe("masters", ", equal results", [&](TrainConfig& c) { c.masters = config_.masters; });
        describe("offload", "", [&](TrainConfig& c) { c.offload = config_.offload; });
        describe("gradient-dtype", ", rounds the gradients",
                 [&](TrainConfig& c) { c.gradient_dtype = config_.gradient_dtype; });
        describe("moment-dtype", ", rounds the moments",
                 [&](TrainConfig& c) { c.moment_dtype = config_.moment_dtype; });
        return line;
    }

  private:
    bool is_free(const std::string& name) const {
        return !config_.given.contains(name) && present_[name] == defaults_[name];
    }

    const MemoryPlan& pass_plan(const TrainConfig& of) {
        auto& known = passes_[{of.training.recompute, of.micro_batch, of.gradient_dtype,
                               static_cast<int>(of.offload) & ~static_cast<int>(Offload::optimizer)}];
        if (!known) {
            TrainConfig config = config_;
            config.training.recompute = of.training.recompute;
            config.micro_batch = of.micro_batch;
            config.gradient_dtype = of.gradient_dtype;
            config.offload = of.offload;
            known = plan_memory(dry_, request_of(config));
        }
        return *known;
    }
    const MemoryPlan& state_plan(const TrainConfig& config) {
        auto& known = states_[{config.masters, config.moment_dtype, config.gradient_dtype,
                               has_part(config.offload, Offload::optimizer)}];
        if (!known) {
            MemoryRequest request = request_of(config);
            request.micro_batch = 1;
            known = plan_memory(dry_, request);
        }
        return *known;
    }

    Context dry_;
    Device device_;
    const TrainConfig& config_;
    std::int64_t ranks_;
    bool row_ranges_;
    JsonValue defaults_, present_;
    std::map<std::tuple<Recompute, std::int64_t, TrainDType, int>, std::optional<MemoryPlan>> passes_;
    std::map<std::tuple<MasterFormat, MomentFormat, TrainDType, bool>, std::optional<MemoryPlan>> states_;
};

}  // namespace

std::size_t bytes_to_plan(const TrainConfig& config, Device device) {
    const std::size_t given = memory_bytes(config.memory_budget), unplanned = unplanned_memory(device);
    check(given > unplanned, "memory-budget: ", config.memory_budget, "; expected more than ",
          unplanned >> 20, " MiB, which CUDA and its libraries take");
    return given - unplanned;
}

MemoryChoice choose_within(const Context& ctx, Device device, const TrainConfig& config, std::int64_t ranks,
                           bool row_ranges, std::size_t budget) {
    Chooser chooser(ctx, device, config, ranks, row_ranges);
    std::optional<TrainConfig> smallest;
    std::size_t smallest_need = 0;
    for (const RoundedFormats& formats : chooser.rounded_formats()) {
        std::optional<TrainConfig> fastest;
        double least_time = 0.0;
        for (const TrainConfig& candidate : chooser.candidates(formats)) {
            const MemoryPlan plan = chooser.plan_of(candidate);
            if (!smallest || plan.total() < smallest_need) {
                smallest = candidate;
                smallest_need = plan.total();
            }
            const double time = chooser.relative_time(candidate, plan);
            if (plan.total() > budget || (fastest && time >= least_time)) continue;
            fastest = candidate;
            least_time = time;
        }
        if (fastest) return {*fastest, chooser.description(*fastest)};
    }
    const std::string least = chooser.description(*smallest);
    try {
        plan_within(ctx, chooser.request_of(*smallest), budget);
    } catch (const Error& error) {
        throw Error(concat(error.what(), least.empty() ? "" : "; the smallest need, with ", least));
    }
    throw Error("memory: the plans of one run differ");
}

}  // namespace gradtile
