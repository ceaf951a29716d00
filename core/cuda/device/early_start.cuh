#pragma once
/// The two halves of await_predecessor() (launch.cuh), for kernels that first read data which no kernel of
/// the same pass writes, such as weights.
///
/// A kernel that calls allow_successor() before await_results() lets its successor start while its own
/// predecessor may still run. Until a kernel has called await_results(), it may therefore read only what was
/// written before the last kernel that began with await_predecessor() or was launched without starts_early.
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::cuda::device {

/// Lets the blocks of the next kernel start as soon as all blocks of this one have made the call or ended.
__device__ __forceinline__ void allow_successor() {
#if __CUDA_ARCH__ >= GRADTILE_FIRST_WAITING_ARCHITECTURE * 10
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until all writes of the preceding kernel are visible. Every block must make the call, because the
/// results of earlier kernels reach later ones through it.
__device__ __forceinline__ void await_results() {
#if __CUDA_ARCH__ >= GRADTILE_FIRST_WAITING_ARCHITECTURE * 10
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace gradtile::cuda::device
