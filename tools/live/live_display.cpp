#include <gradtile/tools/live/live_display.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include <gradtile/core/os/internal/operating_system.h>
#include <gradtile/core/start_thread.h>
#include <gradtile/core/text/formatted.h>

namespace gradtile {
namespace {

constexpr auto frame_time = std::chrono::milliseconds(100);
constexpr auto memory_interval = std::chrono::seconds(1);

/// A step's weight in the mean speed: about the last 20 steps count.
constexpr double speed_weight = 0.05;

constexpr const char *clear_line = "\x1b[K", *clear_below = "\x1b[J";  // from the cursor on

}  // namespace

ContinueSignal::ContinueSignal() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGCONT);
    pthread_sigmask(SIG_BLOCK, &set_, &former_mask_);
}

ContinueSignal::~ContinueSignal() {
    // Only SIGCONT is unblocked: other signals may have been blocked in the meantime and must stay blocked.
    if (sigismember(&former_mask_, SIGCONT) == 0) pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
}

bool ContinueSignal::wait(std::chrono::milliseconds time) const {
    os::ReceivedSignal received;
    // Stopping the process interrupts the wait. The next one receives the SIGCONT that has ended the stop.
    do {
        received = os::wait_for_signal(set_, time);
    } while (received.is_interrupted);
    return received.number == SIGCONT;
}

LiveDisplay::LiveDisplay(std::FILE* out, LiveOptions options, const ContinueSignal& continued)
    : out_(out),
      memory_(std::move(options.memory)),
      glyphs_(options.glyphs),
      process_group_(options.has_launcher ? ::getpgid(::getppid()) : ::getpgrp()),
      continued_(continued) {
    state_.options = options.progress;
    state_.report.step = options.progress.first_step;
    for (const LossHistory::Point& point : options.history.train) losses_.add(point.loss);
    for (const LossHistory::Point& point : options.history.validation) {
        state_.evaluation = {point.loss, point.step};
        if (!state_.best || point.loss < state_.best->loss) state_.best = state_.evaluation;
    }
    if (!options.history.train.empty()) state_.report.loss = options.history.train.back().loss;
    thread_ = start_thread("the dashboard", [this] { run(); });
}

LiveDisplay::~LiveDisplay() {
    {
        const std::lock_guard lock(state_mutex_);
        ending_ = true;
    }
    thread_.join();
    draw();
}

void LiveDisplay::update_speed(const StepReport& report) {
    state_.tokens_per_s =
        state_.tokens_per_s > 0.0
            ? state_.tokens_per_s + speed_weight * (report.tokens_per_s - state_.tokens_per_s)
            : report.tokens_per_s;
    state_.seconds_left =
        seconds_left(report, state_.options, std::chrono::duration<double>(Clock::now() - start_).count());
}

void LiveDisplay::operator()(const StepReport& report) {
    const Clock::time_point now = Clock::now();
    if (memory_ && now - last_memory_ > memory_interval) {
        const MemoryUse memory = memory_();
        const std::lock_guard lock(state_mutex_);
        state_.memory = memory;
        last_memory_ = now;
    }
    const std::lock_guard lock(state_mutex_);
    state_.report = report;
    state_.part.reset();
    last_step_ = now;
    update_speed(report);
    losses_.add(report.loss);
    if (report.val_loss) {
        state_.evaluation = {*report.val_loss, report.step};
        if (std::isfinite(*report.val_loss) && (!state_.best || *report.val_loss < state_.best->loss))
            state_.best = state_.evaluation;
    }
    is_new_ = true;
}

void LiveDisplay::operator()(const StepPart& part) {
    const std::lock_guard lock(state_mutex_);
    if (std::chrono::duration<double>(Clock::now() - last_step_).count() < state_.options.patience) return;
    state_.part = part;
    is_new_ = true;
}

void LiveDisplay::run() {
    for (;;) {
        const bool continued = continued_.wait(frame_time);
        const bool in_foreground = is_in_foreground();
        bool resized = false;
        if (continued || !in_foreground) {
            // Another program has printed below the dashboard, so the next dashboard begins at the cursor.
            const std::lock_guard drawing(drawing_mutex_);
            drawn_columns_.clear();
        } else {
            const std::lock_guard drawing(drawing_mutex_);
            const TerminalSize size = terminal_size(out_);
            resized = size.columns != drawn_size_.columns || size.rows != drawn_size_.rows;
        }
        {
            const std::lock_guard lock(state_mutex_);
            if (ending_) return;
            if (!is_new_ && !resized && !continued) continue;
        }
        if (in_foreground) draw();
    }
}

bool LiveDisplay::is_in_foreground() const {
    const pid_t foreground = ::tcgetpgrp(fileno(out_));
    // A terminal that does not control this session has no background.
    return foreground < 0 || foreground == process_group_;
}

/// Returns the escape sequence that moves the cursor to the dashboard's first column and row.
std::string LiveDisplay::to_the_top(const TerminalSize& size) const {
    std::size_t rows = 0;
    // Most terminals wrap the dashboard's lines when the terminal becomes narrower.
    for (const std::size_t columns : drawn_columns_)
        rows += std::max<std::size_t>(1, (columns + size.columns - 1) / size.columns);
    return rows > 0 ? formatted("\r\x1b[%zuA", rows) : "\r";
}

void LiveDisplay::print_above(const std::function<void()>& print) {
    {
        const std::lock_guard drawing(drawing_mutex_);
        write(to_the_top(terminal_size(out_)) + clear_below);
        drawn_columns_.clear();
        print();
    }
    draw();
}

void LiveDisplay::draw() {
    const std::lock_guard drawing(drawing_mutex_);
    const TerminalSize size = terminal_size(out_);
    DashboardState state;
    {
        const std::lock_guard lock(state_mutex_);
        is_new_ = false;
        state = state_;
        state.losses = losses_.means();
    }
    if (continued_.wait(std::chrono::milliseconds(0))) drawn_columns_.clear();
    std::string frame = to_the_top(size);
    drawn_columns_.clear();
    for (const DashboardLine& line : dashboard_lines(state, size, glyphs_)) {
        frame += line.text + clear_line + '\n';
        drawn_columns_.push_back(line.columns);
    }
    write(frame + clear_below);  // an earlier dashboard may have had more rows
    drawn_size_ = size;
}

/// A failed write is ignored, because a closed terminal does not stop training.
void LiveDisplay::write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), out_);
    std::fflush(out_);
}

}  // namespace gradtile
