#pragma once
/// Whether the terminal that a process was started from is still there.
#include <signal.h>

namespace gradtile {

/// The controlling terminal at the time this object is made; none where there was none.
class StartTerminal {
  public:
    StartTerminal();
    /// Whether there was one and it is gone: its window was closed, its connection broke. It stays gone.
    bool is_hung_up() const;
    /// Whether a SIGHUP came because the terminal is gone, from the kernel or from a shell, and not from a
    /// person or a scheduler (kill -HUP). Waits up to half a second for a terminal whose shell sent it.
    bool has_sent(const siginfo_t& hangup) const;

  private:
    bool existed_;
};

}  // namespace gradtile
