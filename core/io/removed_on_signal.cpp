#include <gradtile/core/io/removed_on_signal.h>

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <system_error>

namespace gradtile {
namespace {

/// A signal handler may allocate no memory and take no lock, so the paths are in fixed places with atomic
/// states.
struct Slot {
    enum State : int { empty, reserved, registered, taken };
    std::atomic<int> state{empty};
    std::atomic<std::uint64_t> number{0};  // in registration order
    pid_t owner = 0;                       // a forked child must not remove its parent's files
    std::array<char, 1024> path{};
};

std::array<Slot, 64> slots;
std::atomic<std::uint64_t> registrations{0};
std::atomic<int> waits{0};           // objects of SignalsWait
std::atomic<int> waiting_signal{0};  // that came meanwhile, or 0
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace

RemovedOnSignal::RemovedOnSignal(const std::filesystem::path& path) {
    std::error_code error;
    const std::string full_path = std::filesystem::absolute(path, error).string();
    if (error || full_path.size() >= Slot{}.path.size()) return;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        Slot& slot = slots[i];
        int free = Slot::empty;
        if (!slot.state.compare_exchange_strong(free, Slot::reserved)) continue;
        std::memcpy(slot.path.data(), full_path.c_str(), full_path.size() + 1);
        slot.owner = ::getpid();
        slot.number = ++registrations;
        slot.state = Slot::registered;
        slot_ = static_cast<int>(i);
        return;
    }
}

RemovedOnSignal::~RemovedOnSignal() {
    if (slot_ < 0) return;
    // A slot that a handler has taken is not used again: the process is about to end.
    int own = Slot::registered;
    slots[static_cast<std::size_t>(slot_)].state.compare_exchange_strong(own, Slot::empty);
}

SignalsWait::SignalsWait() {
    ++waits;
}

SignalsWait::~SignalsWait() {
    if (--waits > 0) return;
    if (const int number = waiting_signal.exchange(0)) ::kill(::getpid(), number);
}

bool ends_by_signal(int number) noexcept {
    // If the last wait ends meanwhile, either its thread or this one sees both and takes the signal.
    waiting_signal = number;
    return waits == 0 && waiting_signal.exchange(0) != 0;
}

void remove_registered_files() noexcept {
    const int error = errno;
    const pid_t process = ::getpid();
    for (;;) {
        Slot* newest = nullptr;
        for (Slot& slot : slots)
            if (slot.state == Slot::registered && slot.owner == process &&
                (newest == nullptr || slot.number > newest->number))
                newest = &slot;
        if (newest == nullptr) break;
        int known = Slot::registered;
        if (!newest->state.compare_exchange_strong(known, Slot::taken)) continue;
        if (::unlink(newest->path.data()) != 0) ::rmdir(newest->path.data());
    }
    errno = error;
}

}  // namespace gradtile
