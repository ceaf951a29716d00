#include <gradtile/train/stop_signals.h>

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

constexpr std::array watched = {SIGTERM, SIGUSR1, SIGXFSZ};  // the last one only to be ignored

// A signal handler can reach nothing but static storage.
std::atomic<bool> watching{false};
std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);
std::array<struct sigaction, watched.size()> former;

extern "C" void remember_signal(int number) {
    int first = 0;
    if (!received.compare_exchange_strong(first, number) && first == number) _exit(128 + number);
}

}  // namespace

StopSignals::StopSignals() {
    check(!watching.exchange(true), "stop signals: already watched");
    received = 0;
    struct sigaction action {};
    action.sa_flags = SA_RESTART;  // a save under way must not see interrupted calls
    sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i < watched.size(); ++i) {
        action.sa_handler = watched[i] == SIGXFSZ ? SIG_IGN : remember_signal;
        sigaction(watched[i], &action, &former[i]);
    }
}

StopSignals::~StopSignals() {
    for (std::size_t i = 0; i < watched.size(); ++i) sigaction(watched[i], &former[i], nullptr);
    watching = false;
}

int StopSignals::signal() const {
    return received;
}

}  // namespace gradtile
