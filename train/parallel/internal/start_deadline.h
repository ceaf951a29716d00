#pragma once
/// A deadline for calls that have no timeout: MPI_Init waits for missing processes forever.
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include <gradtile/train/parallel/internal/socket.h>

namespace gradtile {

class StartDeadline {
  public:
    /// Unless this object is destroyed first, `on_expiry` is called at the deadline, on another thread, with
    /// the last text that set_waiting_for received. `on_expiry` must end the process, because nothing else
    /// ends the wait.
    StartDeadline(SteadyTime deadline, std::function<void(const std::string& waiting_for)> on_expiry);
    ~StartDeadline();
    StartDeadline(const StartDeadline&) = delete;
    StartDeadline& operator=(const StartDeadline&) = delete;

    void set_waiting_for(const std::string& what);

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool stopped_ = false;     // guarded by mutex_
    std::string waiting_for_;  // guarded by mutex_
    std::thread thread_;
};

}  // namespace gradtile
