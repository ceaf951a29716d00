#pragma once
/// The terminal that a process was started from.
namespace gradtile {

namespace os {
struct ReceivedSignal;
}

/// The controlling terminal at the time this object is created, if any.
class StartTerminal {
  public:
    StartTerminal();
    /// Returns whether the terminal existed and is gone, because its window or its connection was closed. A
    /// terminal that is gone never comes back.
    bool is_hung_up() const;
    /// Returns whether the kernel or a shell sent a SIGHUP because the terminal is gone, and not a person or
    /// a scheduler (kill -HUP). If a shell sent it, waits up to half a second for the terminal to disappear.
    bool has_sent(const os::ReceivedSignal& hangup) const;

  private:
    bool existed_;
};

}  // namespace gradtile
