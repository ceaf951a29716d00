#pragma once
/// Barriers in shared memory that count arrivals and asynchronously copied bytes (mbarrier, sm_90). PTX ISA
/// 9.7.13 "Parallel Synchronization: mbarrier".
///
/// A barrier's phases are numbered from 0. A phase ends when all expected arrivals have been made and all
/// announced bytes have been copied. A wait names a phase by its parity, so a waiter may be at most one phase
/// behind.
#include <cstdint>

#include <gradtile/core/cuda/device/async_copy.cuh>

namespace gradtile::cuda::device {

class Barrier {
  public:
    /// `memory` points to a std::uint64_t in shared memory.
    __device__ __forceinline__ explicit Barrier(std::uint32_t memory) : memory_(memory) {}

    /// One thread must call this function; publish_barriers() and a block barrier must follow.
    __device__ __forceinline__ void initialize(int arrivals) const {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(memory_), "r"(arrivals) : "memory");
    }
    __device__ __forceinline__ void arrive() const {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(memory_) : "memory");
    }
    /// Makes one arrival for the calling warp, after all earlier reads and writes of its lanes. All lanes
    /// must call this function.
    __device__ __forceinline__ void arrive_as_warp() const {
        __syncwarp();
        if (lane_index() == 0) arrive();
    }
    /// Arrives, and announces `bytes` bytes from copies that report to this barrier.
    __device__ __forceinline__ void arrive_and_expect(int bytes) const {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(memory_), "r"(bytes)
                     : "memory");
    }
    /// Waits until the current phase ends if it has this parity. Returns at once if the current phase has the
    /// other parity.
    __device__ __forceinline__ void wait(int parity) const {
        while (!has_ended(parity)) {
        }
    }
    __device__ __forceinline__ std::uint32_t memory() const { return memory_; }

  private:
    /// Waits for a limited time, which the hardware chooses.
    __device__ __forceinline__ bool has_ended(int parity) const {
        std::uint32_t ended;
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}"
            : "=r"(ended)
            : "r"(memory_), "r"(parity)
            : "memory");
        return ended != 0;
    }

    std::uint32_t memory_;
};

/// Makes initialized barriers visible to asynchronous copies. The thread that initialized the barriers must
/// call this function.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Barriers in shared memory for a ring with `stages` buffers: a pair for each stage. A producer fills a
/// stage after its consumers have released it.
template <int stages_>
struct Ring {
    static constexpr int stages = stages_;
    std::uint64_t full[stages], empty[stages];
};

/// A thread's position in a ring. The producer and each consumer go through the stages in the same order.
template <int stages>
class RingPosition {
  public:
    __device__ __forceinline__ explicit RingPosition(Ring<stages>& ring)
        : full_(shared_address(ring.full)), empty_(shared_address(ring.empty)) {}

    __device__ __forceinline__ int stage() const { return stage_; }
    __device__ __forceinline__ Barrier full() const { return Barrier(full_ + 8 * stage_); }
    __device__ __forceinline__ Barrier empty() const { return Barrier(empty_ + 8 * stage_); }
    /// Waits until the stage is full. A consumer must call this function before it reads the stage.
    __device__ __forceinline__ void wait_full() const { full().wait(round_); }
    /// Waits until the consumers have released the stage's previous contents. The producer must call this
    /// function before it fills the stage. In the first round, stages are empty: the phase "before" phase 0
    /// has the parity 1 and counts as ended.
    __device__ __forceinline__ void wait_empty() const { empty().wait(round_ ^ 1); }
    __device__ __forceinline__ void advance() {
        if (++stage_ == stages) {
            stage_ = 0;
            round_ ^= 1;
        }
    }

  private:
    std::uint32_t full_, empty_;
    int stage_ = 0, round_ = 0;  ///< round_ is the round's parity
};

/// Releases the stage and goes to the next one. Every consumer warp must call this function once for each
/// stage.
template <int stages>
__device__ __forceinline__ void release(RingPosition<stages>& ring) {
    ring.empty().arrive_as_warp();
    ring.advance();
}

/// Initializes a ring; one thread must call this function. A stage becomes full by `fills` arrivals and the
/// bytes that they announce, and empty by `releases` arrivals.
template <int stages>
__device__ __forceinline__ void initialize(Ring<stages>& ring, int releases, int fills = 1) {
    for (int i = 0; i < stages; ++i) {
        Barrier(shared_address(&ring.full[i])).initialize(fills);
        Barrier(shared_address(&ring.empty[i])).initialize(releases);
    }
}

}  // namespace gradtile::cuda::device
