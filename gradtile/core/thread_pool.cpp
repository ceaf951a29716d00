#include <gradtile/core/thread_pool.h>

#include <sched.h>

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gradtile {
namespace {

thread_local bool inside_block = false;

int cores_of_this_process() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

/// Waits until changed() with a short spin first: a training step opens a parallel region every few hundred
/// microseconds, and a futex round trip each time would cost more than some of the regions.
template <class T, class Changed>
void spin_then_wait(const std::atomic<T>& value, Changed changed) {
    constexpr int spins = 4000;
    for (int i = 0; i < spins; ++i) {
        if (changed(value.load(std::memory_order_acquire))) return;
        pause_briefly();
    }
    for (T seen = value.load(std::memory_order_acquire); !changed(seen);
         seen = value.load(std::memory_order_acquire))
        value.wait(seen, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
    const int size = threads > 0 ? threads : cores_of_this_process();
    workers_.reserve(static_cast<std::size_t>(size - 1));
    for (int i = 1; i < size; ++i) workers_.emplace_back([this] { worker_loop(stop_); });
}

ThreadPool::~ThreadPool() {
    stop_.store(true);
    generation_.fetch_add(1);
    generation_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::take_blocks() {
    inside_block = true;
    for (;;) {
        const std::int64_t block = next_block_.fetch_add(1, std::memory_order_relaxed);
        if (block >= job_.blocks) break;
        try {
            job_.call(job_.body, block);
        } catch (...) {
            const std::lock_guard lock(failure_mutex_);
            if (!failure_) failure_ = std::current_exception();
            next_block_.store(job_.blocks, std::memory_order_relaxed);
        }
    }
    inside_block = false;
}

void ThreadPool::worker_loop(const std::atomic<bool>& stop) {
    std::uint32_t seen = 0;
    for (;;) {
        spin_then_wait(generation_, [&](std::uint32_t now) { return now != seen; });
        if (stop.load()) return;
        ++seen;
        take_blocks();
        if (busy_workers_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_workers_.notify_one();
    }
}

void ThreadPool::run_erased(std::int64_t blocks, Trampoline call, void* body) {
    if (blocks <= 0) return;
    if (inside_block || workers_.empty() || blocks == 1) {
        for (std::int64_t block = 0; block < blocks; ++block) call(body, block);
        return;
    }
    const std::lock_guard lock(caller_mutex_);
    job_ = {call, body, blocks};
    failure_ = nullptr;
    next_block_.store(0, std::memory_order_relaxed);
    busy_workers_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    take_blocks();
    spin_then_wait(busy_workers_, [](int busy) { return busy == 0; });
    if (failure_) std::rethrow_exception(failure_);
}

}  // namespace gradtile
