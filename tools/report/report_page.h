#pragma once
/// The page of `gradtile report`: one file with the curves of several runs and the script that draws them.
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gradtile/tools/command_line/embedded_page.h>
#include <gradtile/tools/report/run_metrics.h>

namespace gradtile::cli {

/// The largest number of runs on one page, of points of one curve, and of texts of one run. In the curve of a
/// longer run, each point is the mean of several steps.
constexpr std::size_t max_report_runs = 24, max_report_points = 2000, max_report_samples = 12;

std::span<const EmbeddedFile> report_page_files();
std::string report_page(const std::vector<RunMetrics>& runs);

}  // namespace gradtile::cli
