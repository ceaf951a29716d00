#pragma once
/// The `gradtile train --live` dashboard: some lines at the end of the output that are redrawn in place.
///
/// The dashboard changes no terminal mode: the cursor stays visible, the screen is the usual one, and keys
/// are echoed. So the terminal stays usable even after kill -9. Between two drawings the cursor is in the row
/// under the dashboard.
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <mutex>
#include <thread>

#include <gradtile/tools/live/dashboard.h>
#include <gradtile/train/run/metrics_file.h>

namespace gradtile {

/// Blocks SIGCONT, so that a thread can wait for it: after Ctrl-Z and fg the dashboard must not overwrite
/// what the shell has printed. Create the object before the process has other threads, which inherit the
/// blocked signal. A blocked SIGCONT still continues the process.
class ContinueSignal {
  public:
    ContinueSignal();
    ~ContinueSignal();
    ContinueSignal(const ContinueSignal&) = delete;
    ContinueSignal& operator=(const ContinueSignal&) = delete;
    /// Waits for at most this time. Returns whether the process was continued.
    bool wait(std::chrono::milliseconds time) const;

  private:
    sigset_t set_{}, former_mask_{};
};

struct LiveOptions {
    ProgressOptions progress;
    Glyphs glyphs = Glyphs::ascii;
    /// The parent is a launcher with its own process group: this process counts as in the foreground if its
    /// parent is.
    bool has_launcher = false;
    LossHistory history = {};                ///< from the run's earlier processes
    std::function<MemoryUse()> memory = {};  ///< called on the training thread; undefined: not shown
};

/// This object's thread writes to the terminal, so a terminal whose output is paused (Ctrl-S) does not stop
/// training. The thread draws at most ten times per second, and only if there is something new: a step, a
/// part of a long step, another terminal size. While the process is in the background it draws nothing.
class LiveDisplay {
  public:
    LiveDisplay(std::FILE* out, LiveOptions options, const ContinueSignal& continued);
    /// Draws the last state, which stays in the terminal.
    ~LiveDisplay();
    LiveDisplay(const LiveDisplay&) = delete;
    LiveDisplay& operator=(const LiveDisplay&) = delete;

    void operator()(const StepReport& report);
    void operator()(const StepPart& part);
    /// Removes the dashboard, calls `print`, which may print whole lines, and draws the dashboard below them.
    void print_above(const std::function<void()>& print);

  private:
    using Clock = std::chrono::steady_clock;

    void run();
    void draw();
    std::string to_the_top(const TerminalSize& size) const;
    void write(const std::string& text);
    bool is_in_foreground() const;
    void update_speed(const StepReport& report);

    std::FILE* out_;
    std::function<MemoryUse()> memory_;
    Glyphs glyphs_;
    pid_t process_group_;  // in the foreground if it is the terminal's group
    const ContinueSignal& continued_;
    Clock::time_point start_ = Clock::now();

    std::mutex state_mutex_;  // protects the members up to the next mutex; never held during a write
    DashboardState state_;
    ThinnedCurve losses_;
    bool is_new_ = true, ending_ = false;
    Clock::time_point last_step_ = start_, last_memory_{};

    std::mutex drawing_mutex_;                // protects the two members below; locked before state_mutex_
    std::vector<std::size_t> drawn_columns_;  // columns in each line above the cursor
    TerminalSize drawn_size_;

    std::thread thread_;  // declared last, because the thread uses all members above
};

}  // namespace gradtile
