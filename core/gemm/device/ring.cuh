#pragma once
/// The ring of A and B blocks in shared memory, which the producer fills and the consumers empty.
#include <cstdint>

#include <gradtile/core/cuda/device/mbarrier.cuh>

namespace gradtile::cuda::device {

/// A thread's position in the ring.
template <int stages>
struct StagePosition {
    int stage = 0, round = 0;  ///< the round's parity

    __device__ __forceinline__ void advance() {
        if (++stage == stages) {
            stage = 0;
            round ^= 1;
        }
    }
    __device__ __forceinline__ void advance(int steps) {
        stage += steps;
        round ^= stage / stages & 1;
        stage %= stages;
    }
};

/// A ring's barriers: a stage becomes full by copies and empty by the consumers' releases.
template <class Policy>
__device__ __forceinline__ Barrier full_barrier(std::uint32_t base, int stage) {
    return Barrier(base + Policy::full_memory + stage * 8);
}
template <class Policy>
__device__ __forceinline__ Barrier empty_barrier(std::uint32_t base, int stage) {
    return Barrier(base + Policy::full_memory + (Policy::stages + stage) * 8);
}

}  // namespace gradtile::cuda::device
