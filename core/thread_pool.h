#pragma once
/// A small thread pool for parallel_for (see context.h). The calling thread also runs blocks; idle threads
/// spin briefly and then sleep. OpenMP is not used, because ThreadSanitizer does not understand libgomp and
/// because blocks must start in order.
#include <cstdint>
#include <memory>
#include <type_traits>

namespace gradtile {

/// Cores in this process's affinity mask.
int usable_cores();

class ThreadPool {
  public:
    /// threads = 0 makes one thread per usable core.
    explicit ThreadPool(int threads = 0);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    /// How many threads work on a call, including the caller. In a child that was forked from the pool's
    /// process, the caller works alone.
    int size() const { return size_; }

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

    struct Workers;  // defined in the .cpp, so that this header does not include <thread>
    int size_;
    std::unique_ptr<Workers> workers_;
};

}  // namespace gradtile
