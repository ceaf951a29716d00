#include <gradtile/train/parallel/internal/start_deadline.h>

namespace gradtile {

StartDeadline::StartDeadline(SteadyTime deadline,
                             std::function<void(const std::string& waits_for)> on_expiry) {
    thread_ = std::thread([this, deadline, on_expiry = std::move(on_expiry)] {
        std::unique_lock lock(mutex_);
        if (changed_.wait_until(lock, deadline, [this] { return over_; })) return;
        const std::string what = waits_for_;
        lock.unlock();
        if (on_expiry) on_expiry(what);
    });
}

StartDeadline::~StartDeadline() {
    {
        const std::scoped_lock lock(mutex_);
        over_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void StartDeadline::waits_for(const std::string& what) {
    const std::scoped_lock lock(mutex_);
    waits_for_ = what;
}

}  // namespace gradtile
