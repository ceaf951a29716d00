#include <gradtile/train/run_clock.h>

#include <algorithm>
#include <filesystem>

#include <gradtile/core/text/formatted.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/train/run/metrics_file.h>

namespace gradtile {

RunClock::RunClock(const TrainConfig& config, ProcessGroup& group)
    : group_(group), budget_seconds_(seconds_of(config.time_budget)) {
    if (group_.is_root() && !config.replay_clock.empty())
        replayed_ = MetricsFile::read_clock(std::filesystem::path(config.replay_clock) / "metrics.jsonl");
}

bool RunClock::count(std::int64_t step, const Times& times) {
    double used = std::clamp(times.run_seconds / budget_seconds_, used_, 1.0);
    const bool first = shortest_step_seconds_ == 0.0;
    shortest_step_seconds_ =
        first ? times.step_seconds : std::min(shortest_step_seconds_, times.step_seconds);
    const double evaluation = times.evaluation_seconds > 0.0
                                  ? times.evaluation_seconds
                                  : times.steps_in_evaluation * shortest_step_seconds_;
    const double end = times.run_seconds + evaluation + times.save_seconds;
    bool last = times.run_seconds >= budget_seconds_ ||
                (!first && end + shortest_step_seconds_ / 2 >= budget_seconds_);
    if (!replayed_.empty()) {
        last = step >= std::ssize(replayed_);
        used = replayed_[static_cast<std::size_t>(std::min<std::int64_t>(step, std::ssize(replayed_)) - 1)];
    }
    // Rank 0 reads its own text, too: every process has the same bits.
    const JsonValue answer =
        parse_json(group_.broadcast(formatted("{\"used\":%.17g,\"last\":%s}", used, last ? "true" : "false")),
                   "the clock of rank 0");
    used_ = answer["used"].number();
    return answer["last"].get<bool>();
}

}  // namespace gradtile
