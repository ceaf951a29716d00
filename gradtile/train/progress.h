#pragma once
/// The line that tells how training goes.
#include <chrono>
#include <cstdio>
#include <string>

#include <gradtile/train/step_report.h>

namespace gradtile {

struct ProgressOptions {
    std::int64_t first_step = 0;  ///< steps done before this process
    std::int64_t last_step = 0;
    double flops_per_token = 0.0;  ///< see flops_per_token() of the model; 0: not shown
    double peak_flops = 0.0;       ///< of the machine, for the share of it that is used (MFU); 0: not shown
    std::int64_t every = 0;        ///< steps between lines where nothing can be rewritten; 0: 20 lines in all
};

/// "step 1200/2000  loss 1.5123  val 1.7312  61.2k tokens/s  301 GFLOP/s  ETA 0:14". On a terminal one line
/// is rewritten; elsewhere a line is printed every so many steps, at evaluations and at the end.
class Progress {
  public:
    Progress(std::FILE* out, const ProgressOptions& options);
    /// Ends a line that is still being rewritten.
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void operator()(const StepReport& report);

  private:
    using Clock = std::chrono::steady_clock;
    std::FILE* out_;
    ProgressOptions options_;
    bool terminal_;
    bool line_open_ = false;
    Clock::time_point start_ = Clock::now();
    Clock::time_point last_print_{};
    std::optional<double> val_loss_;  // the newest, shown until the next
};

/// The line's text.
std::string progress_line(const StepReport& report, const ProgressOptions& options,
                          std::optional<double> val_loss, double seconds_left);
/// 75 -> "1:15", 3675 -> "1:01:15".
std::string readable_duration(double seconds);

}  // namespace gradtile
