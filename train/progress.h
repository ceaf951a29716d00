#pragma once
/// The line that tells how training goes.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <gradtile/train/step_report.h>

namespace gradtile {

struct ProgressOptions {
    std::int64_t first_step = 0;  ///< steps done before this process
    std::int64_t last_step = 0;
    double flops_per_token = 0.0;  ///< see flops_per_token() of the model; 0: not shown
    double peak_flops = 0.0;       ///< of the machine, for the share of it that is used (MFU); 0: not shown
    std::int64_t every = 0;        ///< steps between lines where nothing can be rewritten; 0: 20 lines in all
    /// Seconds without news after which the parts of a step or an evaluation are shown; ten times as many
    /// where nothing can be rewritten.
    double patience = 2.0;
};

/// A part of the line. Where the line is too long for the terminal, those of the highest rank go first.
struct ProgressField {
    std::string text;
    int rank;
};

/// The loss of an evaluation, and the step after which it was made.
struct ProgressEvaluation {
    double loss;
    std::int64_t step;
};

/// "step 1200/2000  loss 1.5123  val 1.7312 @ 1000  61.2k tokens/s  301 GFLOP/s  ETA 0:14". On a terminal one
/// line is rewritten, never longer than the terminal is wide and without escape sequences; elsewhere, and
/// where TERM is "dumb" or not set, a line is printed every so many steps, at evaluations and at the end.
/// Nothing is thrown when a line cannot be written.
class Progress {
  public:
    Progress(std::FILE* out, const ProgressOptions& options);
    /// Ends a line that is still being rewritten.
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void operator()(const StepReport& report);
    /// "step 42/2000  micro-step 3/128", while that takes long.
    void operator()(const StepPart& part);

  private:
    void print(const std::vector<ProgressField>& fields);

    using Clock = std::chrono::steady_clock;
    std::FILE* out_;
    ProgressOptions options_;
    bool terminal_;  // where the line is rewritten
    bool line_open_ = false;
    std::size_t printed_columns_ = 0;  // of the open line
    Clock::time_point start_ = Clock::now();
    Clock::time_point last_print_{};
    Clock::time_point last_news_ = start_;          // the last step done, or part shown
    std::optional<ProgressEvaluation> evaluation_;  // the newest, shown until the next
};

/// The line's parts: "step 1200/2000", "loss 1.5123", ...
std::vector<ProgressField> progress_fields(const StepReport& report, const ProgressOptions& options,
                                           const std::optional<ProgressEvaluation>& evaluation,
                                           double seconds_left);
std::vector<ProgressField> progress_fields(const StepPart& part, const ProgressOptions& options);
/// The parts with two blanks between them, as many as fit into so many columns; of a part that does not even
/// fit alone, its beginning.
std::string progress_line(std::vector<ProgressField> fields, std::size_t columns = std::string::npos);
/// 75 -> "1:15", 3675 -> "1:01:15".
std::string readable_duration(double seconds);

}  // namespace gradtile
