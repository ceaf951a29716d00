#include <gradtile/train/parallel/internal/start_deadline.h>

#include <gradtile/core/start_thread.h>

namespace gradtile {

StartDeadline::StartDeadline(SteadyTime deadline,
                             std::function<void(const std::string& waiting_for)> on_expiry) {
    thread_ = start_thread("the time limit of the start", [this, deadline, on_expiry = std::move(on_expiry)] {
        std::unique_lock lock(mutex_);
        if (changed_.wait_until(lock, deadline, [this] { return stopped_; })) return;
        const std::string what = waiting_for_;
        lock.unlock();
        if (on_expiry) on_expiry(what);
    });
}

StartDeadline::~StartDeadline() {
    {
        const std::scoped_lock lock(mutex_);
        stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void StartDeadline::set_waiting_for(const std::string& what) {
    const std::scoped_lock lock(mutex_);
    waiting_for_ = what;
}

}  // namespace gradtile
