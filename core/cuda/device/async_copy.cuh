#pragma once
/// Copies from global to shared memory that run beside the arithmetic (cp.async, sm_80).
#include <cstdint>

namespace gradtile::cuda::device {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// The thread's index in its block, read again at each use: values that a loop rarely needs are recomputed
/// instead of kept in registers, which the accumulators fill.
__device__ __forceinline__ unsigned thread_index_anew() {
    unsigned index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
}
__device__ __forceinline__ int lane_index() {
    return static_cast<int>(thread_index_anew() % 32);
}
/// Equal in all lanes. The shuffle shows this to the compiler, so that derived values use uniform registers.
__device__ __forceinline__ int warp_index() {
    return __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
}

/// 16 bytes, past the L1; zeros, without reading, where not `valid`.
__device__ __forceinline__ void copy_16_bytes_async(std::uint32_t to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}

/// Closes the group of copies started since the last call.
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most `groups` of this thread's latest groups are under way. Other threads see the copies
/// after the next barrier.
template <int groups>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

}  // namespace gradtile::cuda::device
