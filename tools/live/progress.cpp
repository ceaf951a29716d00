#include <gradtile/tools/live/progress.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include <gradtile/core/text/formatted.h>

namespace gradtile {

std::string readable_rate(double rate) {
    if (rate >= 1e6) return formatted("%.2fM", rate / 1e6);
    if (rate >= 1e3) return formatted("%.1fk", rate / 1e3);
    return formatted("%.0f", rate);
}

bool can_rewrite_lines(std::FILE* out) {
    const char* const term = std::getenv("TERM");
    return isatty(fileno(out)) == 1 && term != nullptr && *term != '\0' && std::strcmp(term, "dumb") != 0;
}

std::string readable_duration(double seconds) {
    const auto whole_seconds = static_cast<long>(std::llround(std::clamp(seconds, 0.0, 1e9)));
    if (whole_seconds >= 3600)
        return formatted("%ld:%02ld:%02ld", whole_seconds / 3600, whole_seconds / 60 % 60,
                         whole_seconds % 60);
    return formatted("%ld:%02ld", whole_seconds / 60, whole_seconds % 60);
}

std::int64_t last_step_of(const StepReport& report, const ProgressOptions& options) {
    if (!report.budget_used || *report.budget_used <= 0.0) return std::max(options.last_step, report.step);
    return std::llround(static_cast<double>(report.step) / *report.budget_used);
}

double seconds_left(const StepReport& report, const ProgressOptions& options, double elapsed) {
    const auto done = static_cast<double>(report.step - options.first_step);
    const auto left = static_cast<double>(last_step_of(report, options) - report.step);
    return done > 0.0 ? elapsed / done * left : 0.0;
}

TerminalSize terminal_size(std::FILE* out) {
    TerminalSize result;
    winsize size{};
    if (::ioctl(fileno(out), TIOCGWINSZ, &size) != 0) return result;
    if (size.ws_col > 0) result.columns = size.ws_col;
    if (size.ws_row > 0) result.rows = size.ws_row;
    return result;
}

std::vector<ProgressField> progress_fields(const StepReport& report, const ProgressOptions& options,
                                           const std::optional<ProgressEvaluation>& evaluation,
                                           double seconds_left) {
    std::vector<ProgressField> fields{{formatted("step %lld/%lld", static_cast<long long>(report.step),
                                                 static_cast<long long>(last_step_of(report, options))),
                                       0},
                                      {formatted("loss %.4f", report.loss), 1}};
    if (evaluation) {
        std::string text = formatted("val %.4f", evaluation->loss);
        if (evaluation->step != report.step)
            text += formatted(" @ %lld", static_cast<long long>(evaluation->step));
        fields.push_back({text, 4});
    }
    fields.push_back({readable_rate(report.tokens_per_s) + " tokens/s", 3});
    const double flops = report.tokens_per_s * options.flops_per_token;
    if (flops > 0.0) fields.push_back({formatted("%.0f GFLOP/s", flops / 1e9), 6});
    if (flops > 0.0 && options.peak_flops > 0.0)
        fields.push_back({formatted("MFU %.0f%%", 100.0 * flops / options.peak_flops), 5});
    fields.push_back({"ETA " + readable_duration(seconds_left), 2});
    return fields;
}

std::string progress_line(std::vector<ProgressField> fields, std::size_t columns) {
    const auto line_of = [&] {
        std::string line;
        for (const ProgressField& field : fields) line += (line.empty() ? "" : "  ") + field.text;
        return line;
    };
    std::string line = line_of();
    while (line.size() > columns && fields.size() > 1) {
        fields.erase(
            std::max_element(fields.begin(), fields.end(),
                             [](const ProgressField& a, const ProgressField& b) { return a.rank < b.rank; }));
        line = line_of();
    }
    return line.substr(0, columns);  // ASCII: each byte is one column
}

std::vector<ProgressField> progress_fields(const StepPart& part, const ProgressOptions& options) {
    const char* const what = part.kind == StepPart::Kind::micro_steps ? "micro-step" : "evaluation window";
    const auto step = static_cast<long long>(part.step), last = static_cast<long long>(options.last_step);
    return {
        {last > 0 ? formatted("step %lld/%lld", step, last) : formatted("step %lld", step), 0},
        {formatted("%s %lld/%lld", what, static_cast<long long>(part.done), static_cast<long long>(part.all)),
         1}};
}

Progress::Progress(std::FILE* out, const ProgressOptions& options)
    : out_(out), options_(options), terminal_(can_rewrite_lines(out)) {
    if (options_.every == 0)
        options_.every = std::max<std::int64_t>(1, (options_.last_step - options_.first_step) / 20);
}

Progress::~Progress() {
    if (line_open_) std::fputc('\n', out_);
    std::fflush(out_);
}

void Progress::operator()(const StepReport& report) {
    if (report.val_loss) evaluation_ = {*report.val_loss, report.step};
    const Clock::time_point now = last_update_ = Clock::now();
    const std::int64_t last_step = last_step_of(report, options_);
    const bool last = report.step == last_step;
    if (options_.last_step == 0) options_.every = std::max<std::int64_t>(1, last_step / 20);
    // The line is redrawn at most ten times per second, so that drawing takes no training time.
    const bool due = terminal_ ? now - last_print_ > std::chrono::milliseconds(100)
                               : report.step % options_.every == 0 || report.val_loss.has_value();
    if (!due && !last) return;
    last_print_ = now;
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    print(progress_fields(report, options_, evaluation_, seconds_left(report, options_, elapsed)));
}

void Progress::operator()(const StepPart& part) {
    const Clock::time_point now = Clock::now();
    const double patience = terminal_ ? options_.patience : 10.0 * options_.patience;
    if (std::chrono::duration<double>(now - last_update_).count() < patience) return;
    last_update_ = now;
    print(progress_fields(part, options_));
}

void Progress::print(const std::vector<ProgressField>& fields) {
    if (!terminal_) {
        std::fprintf(out_, "%s\n", progress_line(fields).c_str());
        std::fflush(out_);
        return;
    }
    // The last column stays free, because some terminals start a new line once it is filled. Blanks overwrite
    // what is left from the previous line, unless the terminal is now narrower.
    const std::size_t columns = terminal_size(out_).columns - 1;
    std::string line = progress_line(fields, columns);
    const std::size_t length = line.size();
    line.resize(std::max(length, std::min(printed_columns_, columns)), ' ');
    std::fprintf(out_, "\r%s", line.c_str());
    std::fflush(out_);
    printed_columns_ = length;
    line_open_ = true;
}

}  // namespace gradtile
