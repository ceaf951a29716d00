#pragma once
/// A run's metrics and settings, as `gradtile report` compares them.
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gradtile::cli {

struct MetricsPoint {
    std::int64_t step = 0;
    double tokens = 0.0;  ///< NaN if the number is not known
    double wall_s = 0.0;
    /// NaN if the line has no number. A number that is not finite is missing in the line.
    double loss = 0.0, lr = 0.0, grad_norm = 0.0, tokens_per_s = 0.0;
    bool refused = false;  ///< true if the update was not applied
    std::optional<double> val_loss = {};
};

/// A text that the model wrote during training.
struct MetricsSample {
    std::int64_t step = 0;
    std::string text;  ///< with the prompt
};

struct RunMetrics {
    std::string name;  ///< the directory's name, without control characters
    std::string path;  ///< the path as the user gave it, without control characters
    std::vector<MetricsPoint> points = {};
    std::vector<MetricsSample> samples = {};
    std::int64_t refused_updates = 0;
    std::map<std::string, std::string> settings =
        {};  ///< as JSON texts; empty when config.json cannot be read
    /// Messages about lines that were left out, for example "run/metrics.jsonl: 2 lines are not steps (the
    /// first is line 7)".
    std::vector<std::string> warnings = {};
};

/// Reads a run. `run` is its directory, or a file like metrics.jsonl. The settings come from config.json in
/// the same directory. Lines that are not steps are left out, and a warning gives their number. When a step
/// occurs twice, the later line counts. Lines from older versions have neither wall_s (replaced by the summed
/// ms) nor tokens (computed from the settings). Throws Error, one line with the file's name, when there is no
/// file or no step in it.
RunMetrics read_run_metrics(const std::filesystem::path& run);

}  // namespace gradtile::cli
