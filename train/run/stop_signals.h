#pragma once
/// Signals as requests to stop: a trainer polls requested(), ends cleanly and saves.
#include <signal.h>

#include <array>
#include <atomic>
#include <thread>

#include <gradtile/train/run/terminal.h>

namespace gradtile {

/// Returns whether this process ignores the signal. May be called between fork and exec.
bool is_ignored(int signal);

/// While a StopSignals exists, the first SIGTERM, SIGUSR1, SIGINT (Ctrl-C) or SIGHUP is stored as a request,
/// and the same signal received again ends the process at once with status 128 + its number. A different
/// second signal does not end the process, because a launcher passes SIGTERM on as SIGUSR1 to processes that
/// may have received SIGTERM, too.
///
/// Until the first requested() call, the first signal ends the process at once. So a start that reads data,
/// plans memory or waits for other processes can be interrupted.
///
/// A SIGHUP is ignored when it comes because the terminal that the process was started from is gone. A SIGHUP
/// from a person or a scheduler (kill -HUP) is a request. A SIGINT or SIGHUP that was ignored at the start
/// (nohup) stays ignored. SIGXFSZ and SIGPIPE are ignored: a write beyond the file size limit or into a
/// closed pipe then fails like a write to a full disk.
///
/// No handler runs on any thread: the signals are blocked, and this object's thread waits for them. Create
/// the object before the process has other threads, because only later threads inherit the blocked signals; a
/// signal that an older thread receives would end the process. Destroy the object on the thread that created
/// it. There is at most one object at a time. A child process inherits the blocked signals, unless they are
/// unblocked between fork and exec.
class StopSignals {
  public:
    StopSignals();
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    bool requested() const {
        answered_ = true;
        return signal() != 0;
    }
    /// Returns the signal that was received; 0: none.
    int signal() const { return received_; }

  private:
    static constexpr std::array ignored = {SIGXFSZ, SIGPIPE};

    void restore_signals();
    void wait_for_signals();
    void take(const os::ReceivedSignal& signal);

    StartTerminal terminal_;
    sigset_t requests_, former_mask_;
    std::array<struct sigaction, ignored.size()> former_;
    mutable std::atomic<bool> answered_{false};
    std::atomic<bool> ending_{false};
    std::atomic<int> received_{0};
    std::thread thread_;  // declared last, because the thread uses all members above
};

}  // namespace gradtile
