#pragma once
/// What `gradtile plan` prints with --fit and --loss.
#include <string>
#include <vector>

#include <gradtile/train/config/train_config.h>

namespace gradtile::cli {

/// Prints the constants that fit the measurements in these files best, and each measurement's deviation.
void print_cost_fit(const std::vector<std::string>& files, bool json);

/// Fits the law to the finished runs in these directories, and prints its losses for them and for a run with
/// these settings.
void print_predicted_loss(const TrainConfig& config, const std::vector<std::string>& directories, bool json);

}  // namespace gradtile::cli
