#include <gradtile/train/progress.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include <gradtile/train/formatted.h>

namespace gradtile {
namespace {

/// Three digits and a unit: 61234 -> "61.2k".
std::string readable_rate(double rate) {
    if (rate >= 1e6) return formatted("%.2fM", rate / 1e6);
    if (rate >= 1e3) return formatted("%.1fk", rate / 1e3);
    return formatted("%.0f", rate);
}

}  // namespace

std::string readable_duration(double seconds) {
    const auto whole = static_cast<long>(std::llround(std::clamp(seconds, 0.0, 1e9)));
    if (whole >= 3600) return formatted("%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
    return formatted("%ld:%02ld", whole / 60, whole % 60);
}

std::string progress_line(const StepReport& report, const ProgressOptions& options,
                          std::optional<double> val_loss, double seconds_left) {
    std::string line = formatted("step %lld/%lld  loss %.4f", static_cast<long long>(report.step),
                                 static_cast<long long>(options.last_step), report.loss);
    if (val_loss) line += formatted("  val %.4f", *val_loss);
    line += "  " + readable_rate(report.tokens_per_s) + " tokens/s";
    const double flops = report.tokens_per_s * options.flops_per_token;
    if (flops > 0.0) line += formatted("  %.0f GFLOP/s", flops / 1e9);
    if (flops > 0.0 && options.peak_flops > 0.0)
        line += formatted(" (MFU %.0f%%)", 100.0 * flops / options.peak_flops);
    line += "  ETA " + readable_duration(seconds_left);
    return line;
}

Progress::Progress(std::FILE* out, const ProgressOptions& options)
    : out_(out), options_(options), terminal_(isatty(fileno(out)) == 1) {
    if (options_.every == 0)
        options_.every = std::max<std::int64_t>(1, (options_.last_step - options_.first_step) / 20);
}

Progress::~Progress() {
    if (line_open_) std::fputc('\n', out_);
    std::fflush(out_);
}

void Progress::operator()(const StepReport& report) {
    if (report.val_loss) val_loss_ = report.val_loss;
    const Clock::time_point now = Clock::now();
    const bool last = report.step == options_.last_step;
    // A terminal is not redrawn more often than an eye can follow: drawing must not cost training time.
    const bool due = terminal_ ? now - last_print_ > std::chrono::milliseconds(100)
                               : report.step % options_.every == 0 || report.val_loss.has_value();
    if (!due && !last) return;
    last_print_ = now;
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    const auto done = static_cast<double>(report.step - options_.first_step);
    const auto left = static_cast<double>(options_.last_step - report.step);
    const std::string line =
        progress_line(report, options_, val_loss_, done > 0.0 ? elapsed / done * left : 0.0);
    std::fprintf(out_, terminal_ ? "\r\x1b[K%s" : "%s\n", line.c_str());
    std::fflush(out_);
    line_open_ = terminal_;
}

}  // namespace gradtile
