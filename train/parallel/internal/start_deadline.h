#pragma once
/// A limit for waits that cannot be given one: MPI's start waits for its processes for ever.
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include <gradtile/train/parallel/internal/socket.h>

namespace gradtile {

class StartDeadline {
  public:
    /// Unless it is destroyed before the deadline, `on_expiry` is called on a thread of its own with what
    /// waits_for said last. It ends the process, since nothing else ends the wait.
    StartDeadline(SteadyTime deadline, std::function<void(const std::string& waits_for)> on_expiry);
    ~StartDeadline();
    StartDeadline(const StartDeadline&) = delete;
    StartDeadline& operator=(const StartDeadline&) = delete;

    void waits_for(const std::string& what);

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool over_ = false;      // under the mutex
    std::string waits_for_;  // under the mutex
    std::thread thread_;
};

}  // namespace gradtile
