#pragma once
/// Planner: what `gradtile plan` predicts for a run on GPUs, from its settings alone.
#include <optional>
#include <string>
#include <vector>

#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/plan/cost_fit.h>
#include <gradtile/train/config/train_config.h>

namespace gradtile::cli {

struct PlanOptions {
    std::int64_t gpus = 1, gpus_per_node = 8;
    double gpu_memory = 139;  ///< in GiB; the default is an H200's memory
    // GB/s and microseconds; 0: the fitted or assumed value.
    double nvlink_bandwidth = 0, network_bandwidth = 0, network_latency = 0;
    std::vector<std::string> measurements = {};  ///< files, to which the constants are fitted
    bool same_batch = false;  ///< other numbers of GPUs have the same batch, and not the same batch per GPU
};

std::vector<Measurement> measurements_in(const std::vector<std::string>& paths);

/// The prediction for a run on `layout`.
struct Prediction {
    GpuLayout layout;
    std::int64_t batch;
    std::size_t memory;
    StepCost cost;
    double tokens_per_second;
    double efficiency = no_value;  ///< tokens_per_second / (GPUs * tokens_per_second with one GPU)
};

/// The settings that `gradtile train --memory-budget` chooses for a ZeRO level and a format of frozen
/// matrices.
struct WayToFit {
    std::int64_t zero;
    WeightFormat frozen_format;
    std::string choices = {};  ///< or, without a prediction, why nothing fits
    std::optional<Prediction> prediction = std::nullopt;
};

class Planner {
  public:
    Planner(const TrainConfig& run, const PlanOptions& options);

    MemoryPlan memory() const;
    /// A GPU's memory in bytes.
    std::size_t budget() const;
    std::string what_fits() const;
    std::int64_t largest_micro_batch() const;
    /// Predicts for one GPU, for each power of two below options.gpus that fills whole nodes, and for
    /// options.gpus.
    std::vector<Prediction> predictions() const;
    /// Returns how the run fits the GPUs' memory, for each ZeRO level and, with adapters, each frozen-dtype,
    /// unless one was given.
    std::vector<WayToFit> ways_to_fit() const;
    /// Where the numbers come from, one line each.
    std::vector<std::string> notes() const;

    const TrainConfig config;
    const PlanOptions options;

  private:
    MemoryRequest request() const;
    std::optional<TrainConfig> config_for(std::int64_t gpus) const;
    std::vector<std::int64_t> zero_levels() const;
    std::vector<WeightFormat> frozen_formats() const;
    Prediction predicted(const TrainConfig& scaled, std::int64_t gpus) const;

    CostConstants constants_;
    Link network_;
    Context ctx_;
};

}  // namespace gradtile::cli
