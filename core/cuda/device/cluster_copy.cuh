#pragma once
/// Copies and barriers for clusters whose thread blocks load the same tiles (sm_90). PTX ISA 9.7.13.3
/// "barrier.cluster" and 9.7.9.25 "cp.async.bulk.tensor".
#include <cstdint>

#include <gradtile/core/cuda/device/tensor_copy.cuh>

namespace gradtile::cuda::device {

/// The thread block's index in its cluster.
__device__ __forceinline__ int rank_in_cluster() {
    std::uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return static_cast<int>(rank);
}

/// Waits for all threads in the cluster. Accesses to shared memory before the wait precede accesses after the
/// wait.
__device__ __forceinline__ void wait_for_cluster() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/// Arrives at the barrier that the cluster's thread block `rank` has at the same address as `barrier`.
__device__ __forceinline__ void arrive_in(int rank, Barrier barrier) {
    asm volatile(
        "{.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(barrier.memory()),
        "r"(rank)
        : "memory");
}

/// Starts a load to the address `to` in every thread block whose bit is set in `ranks`. In each of these
/// blocks, the block's own barrier counts the bytes.
__device__ __forceinline__ void load_box_to(std::uint16_t ranks, std::uint32_t to, const TensorMap& map,
                                            BoxPosition position, Barrier barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], "
        "[%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
        "l"(&map), "r"(position.column), "r"(position.row), "r"(position.head), "r"(position.batch),
        "r"(barrier.memory()), "h"(ranks)
        : "memory");
}

}  // namespace gradtile::cuda::device
