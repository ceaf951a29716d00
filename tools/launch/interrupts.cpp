#include <gradtile/tools/launch/interrupts.h>

#include <unistd.h>

#include <atomic>
#include <cerrno>

#include <gradtile/core/check.h>
#include <gradtile/core/os/internal/operating_system.h>

namespace gradtile::cli {
namespace {

// A signal handler gets no user argument, so the descriptor is global.
std::atomic<int> write_end{-1};

void note_interrupt(int) {
    const int error = errno;
    // If the pipe is full, an earlier interrupt was not taken yet, so nothing is lost.
    if (::write(write_end, "", 1) < 0) errno = error;
    errno = error;
}

}  // namespace

Interrupts::Interrupts() {
    check(write_end < 0, "interrupts: already watched");
    check(os::make_pipe(pipe_) == 0, "interrupts: no pipe");
    write_end = pipe_[1];
    sigaction(SIGINT, nullptr, &former_);
    if (former_.sa_handler == SIG_IGN) return;
    struct sigaction action {};
    action.sa_handler = note_interrupt;
    action.sa_flags = SA_RESTART;  // other threads and libraries do not see interrupted calls
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, nullptr);
}

Interrupts::~Interrupts() {
    sigaction(SIGINT, &former_, nullptr);
    write_end = -1;
    ::close(pipe_[0]);
    ::close(pipe_[1]);
}

bool Interrupts::take() {
    char bytes[64];
    bool any = false;
    while (::read(pipe_[0], bytes, sizeof bytes) > 0) any = true;
    return any;
}

}  // namespace gradtile::cli
