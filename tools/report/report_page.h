#pragma once
/// The `gradtile report` page: one file with several runs' curves and the script that draws them.
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gradtile/tools/command_line/embedded_page.h>
#include <gradtile/tools/report/run_metrics.h>

namespace gradtile::cli {

/// At most this many runs per page, points per curve, and texts per run. In a longer run's curve, each point
/// is the mean over several steps.
constexpr std::size_t max_report_runs = 24, max_report_points = 2000, max_report_samples = 12;

std::span<const EmbeddedFile> report_page_files();
std::string report_page(const std::vector<RunMetrics>& runs);

}  // namespace gradtile::cli
