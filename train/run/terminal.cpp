#include <gradtile/train/run/terminal.h>

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include <gradtile/core/os/internal/operating_system.h>

namespace gradtile {
namespace {

/// After a hangup the kernel detaches the terminal from all processes in its session, and /dev/tty cannot be
/// opened.
bool has_controlling_terminal() {
    const int terminal = ::open("/dev/tty", O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (terminal < 0) return false;
    ::close(terminal);
    return true;
}

}  // namespace

StartTerminal::StartTerminal() : existed_(has_controlling_terminal()) {}

bool StartTerminal::is_hung_up() const {
    return existed_ && !has_controlling_terminal();
}

bool StartTerminal::has_sent(const os::ReceivedSignal& hangup) const {
    if (hangup.is_of_kernel) return true;
    // A shell whose terminal hangs up forwards SIGHUP to its jobs, perhaps before the terminal is gone. A
    // SIGHUP from the shell's kill command has the same sender, so only the terminal's state distinguishes
    // the two.
    constexpr int attempts = 20;
    const bool may_be_passed_on = existed_ && (hangup.sender == 0 || hangup.sender == ::getsid(0));
    for (int i = 0; i < attempts && may_be_passed_on && !is_hung_up(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(25));
    return is_hung_up();
}

}  // namespace gradtile
