#pragma once
/// The progress line during training.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <gradtile/train/run/run_callbacks.h>

namespace gradtile {

struct ProgressOptions {
    std::int64_t first_step = 0;   ///< steps that the run's earlier processes have done
    std::int64_t last_step = 0;    ///< 0: the run has a time budget
    double flops_per_token = 0.0;  ///< the model's flops_per_token(); 0: not shown
    double peak_flops = 0.0;       ///< the machine's peak, for MFU (model FLOPs utilisation); 0: not shown
    std::int64_t every = 0;  ///< steps between lines if the line cannot be rewritten; 0: 20 lines in all
    /// After this many seconds without a new step, the parts of a step or an evaluation are shown; after ten
    /// times as many if the line cannot be rewritten.
    double patience = 2.0;
};

/// Returns the run's last step; the expected one if the run has a time budget.
std::int64_t last_step_of(const StepReport& report, const ProgressOptions& options);

/// A part of the line. If the line is too long for the terminal, the parts with the highest rank are omitted
/// first.
struct ProgressField {
    std::string text;
    int rank;
};

/// An evaluation's loss, and the step after which it was made.
struct ProgressEvaluation {
    double loss;
    std::int64_t step;
};

/// "step 1200/2000 loss 1.5123 val 1.7312 @ 1000 61.2k tokens/s 301 GFLOP/s ETA 0:14". On a terminal the line
/// is rewritten in place, without escape sequences and never longer than the terminal is wide. Elsewhere, and
/// if TERM is "dumb" or not set, a new line is printed every few steps, at evaluations and at the end. A
/// failed write is ignored.
class Progress {
  public:
    Progress(std::FILE* out, const ProgressOptions& options);
    /// Ends an open line.
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void operator()(const StepReport& report);
    /// Shows "step 42/2000 micro-step 3/128" during a long step.
    void operator()(const StepPart& part);

  private:
    void print(const std::vector<ProgressField>& fields);

    using Clock = std::chrono::steady_clock;
    std::FILE* out_;
    ProgressOptions options_;
    bool terminal_;  // the line can be rewritten
    bool line_open_ = false;
    std::size_t printed_columns_ = 0;  // columns in the open line
    Clock::time_point start_ = Clock::now();
    Clock::time_point last_print_{};
    Clock::time_point last_update_ = start_;        // when the last step was done or the last part shown
    std::optional<ProgressEvaluation> evaluation_;  // the newest evaluation
};

/// Returns the line's parts: "step 1200/2000", "loss 1.5123", ...
std::vector<ProgressField> progress_fields(const StepReport& report, const ProgressOptions& options,
                                           const std::optional<ProgressEvaluation>& evaluation,
                                           double seconds_left);
std::vector<ProgressField> progress_fields(const StepPart& part, const ProgressOptions& options);
/// Returns as many parts as fit into `columns`, with two blanks between them. A single part that does not fit
/// is truncated.
std::string progress_line(std::vector<ProgressField> fields, std::size_t columns = std::string::npos);
/// Three digits and a unit: 61234 -> "61.2k".
std::string readable_rate(double rate);
/// Returns the seconds until the last step, if further steps take as long as those of this process.
double seconds_left(const StepReport& report, const ProgressOptions& options, double elapsed);
struct TerminalSize {
    std::size_t columns = 80, rows = 24;
};
/// Returns the present size, because a terminal may be resized; the usual one if `out` is no terminal.
TerminalSize terminal_size(std::FILE* out);
/// Returns whether `out` is a terminal that handles carriage returns: TERM is set and not "dumb".
bool can_rewrite_lines(std::FILE* out);
/// 75 -> "1:15", 3675 -> "1:01:15".
std::string readable_duration(double seconds);

}  // namespace gradtile
