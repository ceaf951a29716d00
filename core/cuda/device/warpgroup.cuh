#pragma once
/// Warpgroups: four consecutive warps; the first warp's index is a multiple of four (sm_90).
#include <cstdint>

#include <gradtile/core/cuda/device/async_copy.cuh>

namespace gradtile::cuda::device {

inline constexpr int warpgroup_threads = 128;

__device__ __forceinline__ int warpgroup_index() {
    return __shfl_sync(~0u, static_cast<int>(threadIdx.x / warpgroup_threads), 0);
}

/// Whether this thread is the first one in its warpgroup.
__device__ __forceinline__ bool is_first_of_warpgroup() {
    return reread_thread_index() % warpgroup_threads == 0;
}

/// Changes how many registers per thread the calling warpgroup has. A block has only the registers that it
/// was launched with, so some warpgroups must release registers before other warpgroups can take them.
/// `registers` is a multiple of 8 between 24 and 256. All warps of the warpgroup must call the function.
template <int registers>
__device__ __forceinline__ void release_registers_down_to() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void take_registers_up_to() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/// Functions for a block's barriers 1 to 15, which some of its warps use. `threads` counts the threads that
/// wait or only arrive; it must be a multiple of 32.
__device__ __forceinline__ void wait_at(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_at(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace gradtile::cuda::device
