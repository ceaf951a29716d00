#pragma once
/// Sends signals to processes that a test has started.
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

}  // namespace gradtile::test
