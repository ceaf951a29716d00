#pragma once
/// Signals to processes that a test has started.
#include <csignal>
#include <cstring>

#include <gradtile/core/check.h>

namespace gradtile::test {

/// kill(), but for the process ids that mean many processes: -1, of one that was not found or not made, is
/// every process there is.
inline void signal_process(pid_t process, int signal) {
    check(process > 0, "no process to send signal ", signal, " to");
    check(::kill(process, signal) == 0, "cannot send signal ", signal, " to process ", process, ": ",
          std::strerror(errno));
}

}  // namespace gradtile::test
