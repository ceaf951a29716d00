#include <gradtile/core/context.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/core/internal/pause.h>
#include <gradtile/core/os/internal/operating_system.h>

namespace gradtile {
namespace {

thread_local bool inside_block = false;

/// Waits until changed(value) and returns that value. A short spin comes first: a training step opens a
/// parallel region every few hundred microseconds, and a futex round trip each time would cost more than some
/// regions. The sleep after it frees the core: the scheduler can move a preempted thread there.
template <class T, class Changed>
T spin_then_wait(const std::atomic<T>& value, Changed changed) {
    constexpr int spins = 4000;
    for (int i = 0; i < spins; ++i) {
        if (const T seen = value.load(std::memory_order_acquire); changed(seen)) return seen;
        pause_briefly();
    }
    for (;;) {
        const T seen = value.load(std::memory_order_acquire);
        if (changed(seen)) return seen;
        value.wait(seen, std::memory_order_acquire);
    }
}

/// How many forks lie between the first process with a pool and this process. A forked child has copies of
/// the parent's pools, but none of their threads.
std::atomic<int> forks{0};

int forks_so_far() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
    check(registered == 0, "threads: the system gives no memory for a fork handler");
    return forks.load(std::memory_order_relaxed);
}

}  // namespace

int usable_cores() {
    return os::usable_cores();
}

struct ThreadPool::Workers {
    struct Job {
        Trampoline call = nullptr;
        void* body = nullptr;
        std::int64_t blocks = 0;
    };
    // The caller waits for blocks, not for threads: if another program occupies a core, a thread may wake
    // milliseconds after the other threads have finished all blocks. So a thread may read `job` only while it
    // holds a claimed block that it has not yet reported as finished. At any other time the job may be over,
    // and the caller may be writing the next one.
    Job job;
    std::atomic<std::int64_t> unclaimed{0};    // blocks without a thread; failed claims make it negative
    std::atomic<std::int64_t> unfinished{0};   // blocks the caller waits for
    std::atomic<std::uint32_t> generation{0};  // a new value wakes the threads
    std::atomic<bool> stop{false};
    std::mutex caller_mutex;  // calls from threads that share a context run one after the other
    std::mutex failure_mutex;
    std::exception_ptr failure;
    std::vector<std::thread> threads;
    const int made_after_forks = forks_so_far();

    bool is_of_parent() const { return made_after_forks != forks_so_far(); }

    explicit Workers(int count) {
        threads.reserve(static_cast<std::size_t>(count));
        try {
            for (int i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
        } catch (const std::system_error& error) {
            const std::size_t given = threads.size();
            end();
            throw Error(
                concat("threads: the system gives ", given + 1, " of ", count + 1, ": ", error.what()));
        }
    }
    ~Workers() { end(); }

    void end() {
        stop.store(true);
        generation.fetch_add(1);
        generation.notify_all();
        for (std::thread& thread : threads) thread.join();
    }

    void run(const Job& next) {
        const std::lock_guard lock(caller_mutex);
        job = next;
        unfinished.store(next.blocks, std::memory_order_relaxed);
        unclaimed.store(next.blocks, std::memory_order_release);
        generation.fetch_add(1, std::memory_order_release);
        generation.notify_all();
        take_blocks();
        spin_then_wait(unfinished, [](std::int64_t now) { return now == 0; });
        if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
    }

    void work() {
        std::uint32_t seen = 0;
        for (;;) {
            seen = spin_then_wait(generation, [&](std::uint32_t now) { return now != seen; });
            if (stop.load()) return;
            take_blocks();
        }
    }

    void take_blocks() {
        inside_block = true;
        std::int64_t finished = 0;
        while (unclaimed.load(std::memory_order_relaxed) > 0) {
            const std::int64_t left = unclaimed.fetch_sub(1, std::memory_order_acquire);
            if (left <= 0) break;
            ++finished;
            try {
                job.call(job.body, job.blocks - left);
            } catch (...) {
                const std::lock_guard lock(failure_mutex);
                if (!failure) failure = std::current_exception();
                finished += std::max<std::int64_t>(0, unclaimed.exchange(0, std::memory_order_relaxed));
            }
        }
        inside_block = false;
        if (finished != 0 && unfinished.fetch_sub(finished, std::memory_order_acq_rel) == finished)
            unfinished.notify_one();
    }
};

ThreadPool::ThreadPool(int threads) : size_(threads == 0 ? usable_cores() : threads) {
    check(size_ > 0, "threads: ", threads, "; expected at least 1, or 0 for one per core");
    workers_ = std::make_unique<Workers>(size_ - 1);
}

ThreadPool::~ThreadPool() {
    // Threads that do not exist in this process cannot be joined, and a lock that such a thread held stays
    // locked. Their memory is not freed.
    if (workers_->is_of_parent()) static_cast<void>(workers_.release());
}

void ThreadPool::run_erased(std::int64_t blocks, Trampoline call, void* body) {
    if (blocks <= 0) return;
    if (inside_block || size_ == 1 || blocks == 1 || workers_->is_of_parent()) {
        for (std::int64_t block = 0; block < blocks; ++block) call(body, block);
        return;
    }
    workers_->run({call, body, blocks});
}

}  // namespace gradtile
