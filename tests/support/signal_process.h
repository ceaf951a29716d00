#pragma once
/// Signals of processes that a test starts.
#include <csignal>
#include <cstring>

#include <gradtile/core/check.h>

namespace gradtile::test {

/// Calls kill() for a single process only. -1, which a failed search or fork returns, would signal every
/// process on the machine.
inline void signal_process(pid_t process, int signal) {
    check(process > 0, "no process to send signal ", signal, " to");
    check(::kill(process, signal) == 0, "cannot send signal ", signal, " to process ", process, ": ",
          std::strerror(errno));
}

/// In a forked child: a shell's background job and nohup ignore signals, which the child must not inherit.
inline void reset_ignored_signals() {
    for (const int number : {SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTSTP}) std::signal(number, SIG_DFL);
}

}  // namespace gradtile::test
