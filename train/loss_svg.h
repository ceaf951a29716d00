#pragma once
/// The loss curve as a picture.
#include <filesystem>
#include <string>

#include <gradtile/train/metrics_file.h>

namespace gradtile {

/// A line picture: the training loss of each step (thin), its running mean (thick), validation points; axes
/// with round numbers. Long runs are thinned to what a picture can show.
std::string loss_svg(const LossHistory& history, const std::string& title);

/// Writes it, whole or not at all; without fsync, which would make training wait for the disk. Throws Error.
void write_loss_svg(const std::filesystem::path& path, const LossHistory& history, const std::string& title);

}  // namespace gradtile
