#pragma once
/// The lines that `gradtile train --live` shows.
#include <optional>
#include <string>
#include <vector>

#include <gradtile/tools/live/progress.h>
#include <gradtile/tools/live/sparkline.h>

namespace gradtile {

/// Memory bytes: for the process and the machine, or for a GPU.
struct MemoryUse {
    std::size_t used = 0, total = 0;
};

struct DashboardState {
    ProgressOptions options;
    StepReport report;             ///< the newest step; step 0: none yet
    std::optional<StepPart> part;  ///< what a long step or evaluation is doing now
    double tokens_per_s = 0.0;     ///< mean over the last steps
    double seconds_left = 0.0;
    std::optional<ProgressEvaluation> evaluation, best;
    std::optional<MemoryUse> memory;
    std::vector<double> losses;  ///< means over consecutive steps, see ThinnedCurve
};

/// "412.3 MiB", "23.5 GiB".
std::string readable_bytes(std::size_t bytes);

/// A dashboard line. Each character in `text` takes one column; `columns` counts the characters.
struct DashboardLine {
    std::string text;
    std::size_t columns = 0;
};

/// Returns lines that are narrower than the terminal and leave one terminal row free. If the terminal is too
/// small, parts of a line and whole lines are omitted, the least important ones first. A terminal of one row
/// gets one line.
std::vector<DashboardLine> dashboard_lines(const DashboardState& state, const TerminalSize& terminal,
                                           Glyphs glyphs);

}  // namespace gradtile
