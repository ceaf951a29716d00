#pragma once
/// Finished runs, from their directories.
#include <string>
#include <vector>

#include <gradtile/tools/plan/loss_law.h>
#include <gradtile/train/config/train_config.h>

namespace gradtile::cli {

/// Reads config.json and metrics.jsonl in each directory. Throws Error naming a run without a validation loss
/// after its last step, or with another vocabulary than the first run's, whose losses per token cannot be
/// compared.
std::vector<TrainedRun> read_trained_runs(const std::vector<std::string>& directories);

/// The law's N and D for a run with these settings.
double matrix_weights(const ModelConfig& model);
/// Throws Error if the settings have no number of steps.
double training_tokens(const TrainConfig& config);

}  // namespace gradtile::cli
