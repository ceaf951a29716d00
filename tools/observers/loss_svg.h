#pragma once
/// The loss curve as an SVG picture.
#include <filesystem>
#include <string>

#include <gradtile/train/run/metrics_file.h>

namespace gradtile {

/// Returns a line plot: the training loss per step (thin), its running mean (thick), the validation losses
/// (dots); axes with round numbers. Long runs are averaged to one point per pixel.
std::string loss_svg(const LossHistory& history, const std::string& title);

/// Writes the picture, complete or not at all. Calls no fsync, because training would wait for the disk.
/// Throws Error when the file cannot be written.
void write_loss_svg(const std::filesystem::path& path, const LossHistory& history, const std::string& title);

}  // namespace gradtile
