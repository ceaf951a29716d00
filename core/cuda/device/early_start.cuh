#pragma once
/// The two halves of await_predecessor() (launch.cuh), for kernels that first read data which no kernel in
/// the same pass writes, such as weights.
///
/// If a kernel calls allow_successor() before await_results(), the next kernel may start while the kernel
/// before both still runs. So before it calls await_results(), a kernel may read only data that was complete
/// when the last kernel started that began with await_predecessor() or was launched without starts_early.
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::cuda::device {

/// Lets the next kernel's blocks start as soon as all blocks of this kernel have called allow_successor() or
/// ended.
__device__ __forceinline__ void allow_successor() {
#if __CUDA_ARCH__ >= GRADTILE_FIRST_WAITING_ARCHITECTURE * 10
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until all writes of the preceding kernel are visible. Every block must call this function: a later
/// kernel that waits for this kernel relies on it having waited for earlier kernels.
__device__ __forceinline__ void await_results() {
#if __CUDA_ARCH__ >= GRADTILE_FIRST_WAITING_ARCHITECTURE * 10
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace gradtile::cuda::device
