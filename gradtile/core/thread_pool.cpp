#include <gradtile/core/thread_pool.h>

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gradtile {
namespace {

thread_local bool inside_block = false;

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

int usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

struct ThreadPool::Workers {
    struct Job {
        Trampoline call = nullptr;
        void* body = nullptr;
        std::int64_t blocks = 0;
    };
    Job job;
    std::atomic<std::int64_t> next_block{0};
    std::atomic<std::uint32_t> generation{0};  // a new value starts the threads
    std::atomic<int> busy{0};
    std::atomic<bool> stop{false};
    std::mutex caller_mutex;  // two threads may share a context; their calls take turns
    std::mutex failure_mutex;
    std::exception_ptr failure;
    std::vector<std::thread> threads;

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
        failure = nullptr;
        next_block.store(0, std::memory_order_relaxed);
        busy.store(static_cast<int>(threads.size()), std::memory_order_relaxed);
        generation.fetch_add(1, std::memory_order_release);
        generation.notify_all();
        take_blocks();
        spin_then_wait(busy, [](int now) { return now == 0; });
        if (failure) std::rethrow_exception(failure);
    }

    void work() {
        std::uint32_t seen = 0;
        for (;;) {
            spin_then_wait(generation, [&](std::uint32_t now) { return now != seen; });
            if (stop.load()) return;
            ++seen;
            take_blocks();
            if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) busy.notify_one();
        }
    }

    void take_blocks() {
        inside_block = true;
        for (;;) {
            const std::int64_t block = next_block.fetch_add(1, std::memory_order_relaxed);
            if (block >= job.blocks) break;
            try {
                job.call(job.body, block);
            } catch (...) {
                const std::lock_guard lock(failure_mutex);
                if (!failure) failure = std::current_exception();
                next_block.store(job.blocks, std::memory_order_relaxed);
            }
        }
        inside_block = false;
    }
};

ThreadPool::ThreadPool(int threads)
    : size_(threads > 0 ? threads : usable_cores()), workers_(std::make_unique<Workers>(size_ - 1)) {}

ThreadPool::~ThreadPool() = default;

void ThreadPool::run_erased(std::int64_t blocks, Trampoline call, void* body) {
    if (blocks <= 0) return;
    if (inside_block || size_ == 1 || blocks == 1) {
        for (std::int64_t block = 0; block < blocks; ++block) call(body, block);
        return;
    }
    workers_->run({call, body, blocks});
}

}  // namespace gradtile
