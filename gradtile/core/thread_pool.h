#pragma once
/// A small pool of threads for parallel_for (see context.h): the caller works too, idle workers spin briefly
/// and then sleep. Not OpenMP, because ThreadSanitizer cannot see through libgomp and because blocks must
/// start in order.
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace gradtile {

class ThreadPool {
  public:
    /// threads = 0: one per core in this process's affinity mask.
    explicit ThreadPool(int threads = 0);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    /// Threads that work on a call, the caller included.
    int size() const { return static_cast<int>(workers_.size()) + 1; }

    template <class Body>
    void run(std::int64_t blocks, Body&& body) {
        using Function = std::remove_reference_t<Body>;
        run_erased(
            blocks, [](void* f, std::int64_t block) { (*static_cast<Function*>(f))(block); },
            const_cast<void*>(static_cast<const void*>(std::addressof(body))));
    }

  private:
    using Trampoline = void (*)(void*, std::int64_t);
    void run_erased(std::int64_t blocks, Trampoline call, void* body);
    void take_blocks();
    void worker_loop(const std::atomic<bool>& stop);

    struct Job {
        Trampoline call = nullptr;
        void* body = nullptr;
        std::int64_t blocks = 0;
    };
    Job job_;
    std::atomic<std::int64_t> next_block_{0};
    std::atomic<std::uint32_t> generation_{0};  // a new value starts the workers
    std::atomic<int> busy_workers_{0};
    std::atomic<bool> stop_{false};
    std::mutex caller_mutex_;  // two threads may share a context; their calls take turns
    std::mutex failure_mutex_;
    std::exception_ptr failure_;
    std::vector<std::thread> workers_;
};

}  // namespace gradtile
