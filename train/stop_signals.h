#pragma once
/// Signals as requests to stop: a trainer asks while it works, ends cleanly and saves.
#include <signal.h>

#include <array>
#include <atomic>
#include <thread>

#include <gradtile/train/terminal.h>

namespace gradtile {

/// While one lives, the first SIGTERM, SIGUSR1, SIGINT (Ctrl-C) or SIGHUP is remembered as a request, and a
/// second one of the same kind ends the process at once with the status 128 + its number. (One of another
/// kind does not: a launcher passes SIGTERM on as SIGUSR1 to processes that may have been sent SIGTERM, too.)
///
/// Before requested() was asked for the first time nobody answers requests yet: the first signal ends the
/// process at once. So a start that reads, plans or waits for others can be interrupted.
///
/// SIGHUP is no request, and is ignored, when it comes because the terminal that the process was started from
/// is gone; sent by a person or a scheduler (kill -HUP) it is one. A SIGINT or SIGHUP that was ignored at the
/// start (nohup) stays ignored. SIGXFSZ and SIGPIPE are ignored meanwhile: a write beyond the limit on file
/// sizes or into a closed pipe then fails like one on a full disk.
///
/// No handler runs on any thread: the signals are blocked, and a thread of this object's waits for them. Make
/// it before the process has other threads, which inherit what is blocked; a thread that was there before
/// would be ended by a signal, and the process with it. Destroy it on the thread that made it. At most one at
/// a time. A process that is started while one lives inherits the blocked signals unless they are given back
/// between fork and exec.
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
    /// The signal that came; 0: none yet.
    int signal() const { return received_; }

  private:
    static constexpr std::array ignored = {SIGXFSZ, SIGPIPE};

    void wait_for_signals();
    void take(const siginfo_t& signal);

    StartTerminal terminal_;
    sigset_t requests_, former_mask_;
    std::array<struct sigaction, ignored.size()> former_;
    mutable std::atomic<bool> answered_{false};
    std::atomic<bool> ending_{false};
    std::atomic<int> received_{0};
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace gradtile
