#include <gradtile/train/run/stop_signals.h>

#include <unistd.h>

#include <gradtile/core/check.h>
#include <gradtile/core/io/removed_on_signal.h>
#include <gradtile/core/os/internal/operating_system.h>
#include <gradtile/core/start_thread.h>

namespace gradtile {
namespace {

// A signal goes to the whole process, so at most one object may wait for signals.
std::atomic<bool> watching{false};

sigset_t request_signals() {
    sigset_t requests;
    sigemptyset(&requests);
    sigaddset(&requests, SIGTERM);
    sigaddset(&requests, SIGUSR1);
    for (const int number : {SIGINT, SIGHUP})
        if (!is_ignored(number)) sigaddset(&requests, number);
    return requests;
}

}  // namespace

bool is_ignored(int signal) {
    struct sigaction action {};
    return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

StopSignals::StopSignals() : requests_(request_signals()) {
    check(!watching.exchange(true), "stop signals: already watched");
    struct sigaction action {};
    action.sa_handler = SIG_IGN;
    sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i < ignored.size(); ++i) sigaction(ignored[i], &action, &former_[i]);
    pthread_sigmask(SIG_BLOCK, &requests_, &former_mask_);
    try {
        thread_ = start_thread("signals", [this] { wait_for_signals(); });
    } catch (...) {
        restore_signals();
        throw;
    }
}

StopSignals::~StopSignals() {
    ending_ = true;
    pthread_kill(thread_.native_handle(), SIGUSR1);  // the signal goes to thread_ only
    thread_.join();
    restore_signals();
}

void StopSignals::restore_signals() {
    pthread_sigmask(SIG_SETMASK, &former_mask_, nullptr);
    for (std::size_t i = 0; i < ignored.size(); ++i) sigaction(ignored[i], &former_[i], nullptr);
    watching = false;
}

void StopSignals::wait_for_signals() {
    while (!ending_) {
        const os::ReceivedSignal signal = os::wait_for_signal(requests_);
        if (signal.number != 0 && !ending_) take(signal);
    }
}

/// This thread writes no output: a blocked write would keep it from handling a second signal.
void StopSignals::take(const os::ReceivedSignal& signal) {
    const int number = signal.number;
    if (number == SIGHUP && terminal_.has_sent(signal)) return;
    const int first = received_;
    if (!answered_ || first == number) {
        if (!ends_by_signal(number)) return;
        remove_registered_files();
        _exit(128 + number);
    }
    if (first == 0) received_ = number;
}

}  // namespace gradtile
