#pragma once
/// Asynchronous copies from global to shared memory, which overlap with arithmetic (cp.async, sm_80).
#include <cstdint>

namespace gradtile::cuda::device {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// The thread's index in its block. Each call reads the special register again. So the compiler recomputes
/// rarely used values that depend on the index, instead of keeping them in registers that accumulators need.
__device__ __forceinline__ unsigned reread_thread_index() {
    unsigned index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
}
__device__ __forceinline__ int lane_index() {
    return static_cast<int>(reread_thread_index() % 32);
}
/// The warp's index in its block. The shuffle tells the compiler that the index is equal in all lanes, so
/// that derived values use uniform registers.
__device__ __forceinline__ int warp_index() {
    return __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
}

/// Starts copying 16 bytes, without caching them in L1. If `valid` is false, writes zeros and reads nothing.
__device__ __forceinline__ void copy_16_bytes_async(std::uint32_t to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}

/// Closes the group of copies started since the last call.
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until all copy groups of this thread are complete, except the latest `groups`. Other threads see the
/// copies after the next barrier.
template <int groups>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

}  // namespace gradtile::cuda::device
