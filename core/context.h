#pragma once
/// Context: an operator's device, stream, threads and memory. Every operator takes a context as its first
/// argument. Copies are cheap and share everything.
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include <gradtile/core/allocator.h>
#include <gradtile/core/check.h>

namespace gradtile {

/// Cores in this process's affinity mask.
int usable_cores();

/// A small thread pool for parallel_for(). The calling thread also runs blocks; idle threads spin briefly and
/// then sleep. OpenMP is not used, because ThreadSanitizer does not understand libgomp and because blocks
/// must start in order.
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

namespace cuda {
class GemmState;
}

class SideStream;

class Context {
  public:
    /// threads = 0 uses every core that this process may run on. Results do not depend on the thread count.
    explicit Context(Device device = Device::cpu(), int threads = 0);

    Device device() const { return allocator_->device(); }
    ThreadPool& threads() const { return *threads_; }
    /// The CUDA stream that operators enqueue their work on (cudaStream_t); nullptr on the CPU.
    void* stream() const { return stream_.get(); }
    const std::shared_ptr<Allocator>& allocator() const { return allocator_; }

    /// Returns this context with another allocator (an activation arena, for example).
    Context with_allocator(std::shared_ptr<Allocator> allocator) const;
    /// Returns this context on another stream (cudaStream_t); see SideStream.
    Context with_stream(std::shared_ptr<void> stream) const;
    /// The side stream that all copies of this context share.
    const SideStream& side() const { return *side_; }
    /// Returns this context for a dry run: operators check shapes and allocate from the planning arena, but
    /// do not compute. A step in this context gives the step's exact activation memory.
    Context plan(std::shared_ptr<Arena> planning_arena) const;
    bool is_planning() const { return planning_; }

    /// Returns a context in which float32 matrix products on CUDA may round their operands to TF32 (10
    /// explicit mantissa bits). The products are several times faster but less accurate. The default is off.
    Context with_tf32(bool allowed) const;
    bool tf32() const { return tf32_; }
    /// Returns a context whose results are bit-identical from run to run. The CPU is always deterministic. A
    /// deterministic context on CUDA chooses no algorithm by timing.
    Context with_deterministic(bool wanted) const;
    bool deterministic() const { return deterministic_; }

    /// The state that matrix products on this stream share; null on the CPU.
    cuda::GemmState* gemm_state() const { return gemm_state_.get(); }

  private:
    friend Context host_of(const Context& ctx);

    std::shared_ptr<ThreadPool> threads_;
    std::shared_ptr<void> stream_;
    std::shared_ptr<const SideStream> side_;
    std::shared_ptr<cuda::GemmState> gemm_state_;
    std::shared_ptr<Allocator> allocator_;
    bool planning_ = false;
    bool tf32_ = false;
    bool deterministic_ = false;
};

/// Returns ctx with an Arena that has `slack` times the memory that work(ctx) needs in a dry run. An arena
/// saves time on a GPU, where a system allocation takes longer than many operators.
template <class Work>
Context with_arena_for(const Context& ctx, Work&& work, double slack = 1.0) {
    const std::shared_ptr<Arena> counting = Arena::for_planning(ctx.device());
    work(ctx.plan(counting));
    const double bytes = slack * static_cast<double>(counting->peak_bytes());
    return ctx.with_allocator(std::make_shared<Arena>(ctx.device(), static_cast<std::size_t>(bytes)));
}

/// Returns a CPU context for preparing and reading elements on the host. The context shares ctx's threads,
/// and allocates from the system allocator.
Context host_of(const Context& ctx);

/// Calls the function for ctx's device with (ctx, args...), or nothing in a dry run:
/// on_device(ctx, cpu::rope_rotate, cuda::rope_rotate, x, cosines, sines, inverse).
template <class Cpu, class Cuda, class... Args>
void on_device(const Context& ctx, Cpu&& cpu_function, Cuda&& cuda_function, Args&&... args) {
    if (ctx.is_planning()) return;
    if (ctx.device().is_cpu()) {
        cpu_function(ctx, std::forward<Args>(args)...);
    } else {
        cuda_function(ctx, std::forward<Args>(args)...);
    }
}

/// Calls body(block) for block = 0 .. blocks-1 on ctx's threads. Blocks are started in increasing order, one
/// at a time per thread, so that a block may wait for a block with a lower number. If the block borders do
/// not depend on the thread count, neither do the results. If one of several blocks calls parallel_for, the
/// inner call runs serially. The first exception is rethrown. In a forked child, which has only the calling
/// thread, a context from the parent runs all blocks on this thread.
template <class Body>
void parallel_for(const Context& ctx, std::int64_t blocks, Body&& body) {
    ctx.threads().run(blocks, std::forward<Body>(body));
}

/// Cuts [0, n) into ranges with `grain` elements (the last may be shorter) and calls body(begin, end) for
/// each. Throws Error unless `grain` is at least 1.
template <class Body>
void parallel_ranges(const Context& ctx, std::int64_t n, std::int64_t grain, Body&& body) {
    check(grain >= 1, "parallel_ranges: ranges of ", grain, " elements; expected at least 1");
    parallel_for(ctx, n <= 0 ? 0 : (n - 1) / grain + 1, [&](std::int64_t block) {
        const std::int64_t begin = block * grain;
        body(begin, n - begin > grain ? begin + grain : n);
    });
}

}  // namespace gradtile
