#pragma once
/// The metrics and settings of a run, as `gradtile report` compares them.
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gradtile::cli {

struct MetricsPoint {
    std::int64_t step = 0;
    double tokens = 0.0;  ///< NaN: not known
    double wall_s = 0.0;
    /// NaN: the line has no number, since it was not finite.
    double loss = 0.0, lr = 0.0, grad_norm = 0.0, tokens_per_s = 0.0;
    bool refused = false;  ///< the update was not applied
    std::optional<double> val_loss = {};
};

/// A text that the model wrote during training.
struct MetricsSample {
    std::int64_t step = 0;
    std::string text;  ///< with the prompt
};

struct RunMetrics {
    std::string name;  ///< printable: the directory's name
    std::string path;  ///< printable: as given
    std::vector<MetricsPoint> points = {};
    std::vector<MetricsSample> samples = {};
    std::int64_t refused_updates = 0;
    std::map<std::string, std::string> settings =
        {};  ///< as JSON texts; empty when config.json cannot be read
    /// What was left out, one line each: "run/metrics.jsonl: 2 lines are not steps (the first is line 7)".
    std::vector<std::string> warnings = {};
};

/// Reads `run`, a directory or a file like metrics.jsonl; its settings are then those of config.json beside
/// it. Lines that are no steps are counted in a warning. When a step occurs twice, the later line counts.
/// Lines of older versions have neither wall_s (the sum of ms stands for it) nor tokens (computed from the
/// settings). Throws Error, one line with the file's name, when there is no file or no step in it.
RunMetrics read_run_metrics(const std::filesystem::path& run);

}  // namespace gradtile::cli
