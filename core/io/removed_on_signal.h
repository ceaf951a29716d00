#pragma once
/// Files that must not remain when a signal ends the process.
#include <filesystem>
#include <utility>

namespace gradtile {

/// While this object exists, remove_registered_files() removes the path: a file, or a directory that is empty
/// by then. The path table has a fixed size, and a path that does not fit is not registered: kill -9 leaves
/// files, too, so the next writer with the same name removes what is left (see DurableFile).
class RemovedOnSignal {
  public:
    RemovedOnSignal() = default;
    explicit RemovedOnSignal(const std::filesystem::path& path);
    ~RemovedOnSignal();
    RemovedOnSignal(RemovedOnSignal&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}
    RemovedOnSignal& operator=(RemovedOnSignal&& other) noexcept {
        std::swap(slot_, other.slot_);
        return *this;
    }
    RemovedOnSignal(const RemovedOnSignal&) = delete;
    RemovedOnSignal& operator=(const RemovedOnSignal&) = delete;

  private:
    int slot_ = -1;
};

/// While an object of this class exists, no signal ends the process whose handler asks ends_by_signal(). So
/// either all of several files get their names, or none.
class SignalsWait {
  public:
    SignalsWait();
    ~SignalsWait();  ///< sends the process the last signal again that has come meanwhile
    SignalsWait(const SignalsWait&) = delete;
    SignalsWait& operator=(const SignalsWait&) = delete;
};

/// Returns whether a signal handler should end the process now: not while a SignalsWait exists. Only for
/// signal handlers, and for threads that wait for signals.
bool ends_by_signal(int number) noexcept;

/// Removes the paths that this process registered, the newest first. Only for a process that ends now. A
/// signal handler may call this function. The library installs no handler: the program `gradtile` does.
void remove_registered_files() noexcept;

}  // namespace gradtile
