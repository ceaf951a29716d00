#pragma once
/// Deterministic dQ: the blocks of keys that add to one piece of dQ take turns, so that its float32 additions
/// happen in the same order in every run. A counter in global memory for each piece tells whose turn it is.
#include <cstdint>

namespace gradtile::attention::cuda::device {

/// The next task that no block has taken yet. CUDA does not promise to start blocks in the order of their
/// index, and a block may wait only for blocks that run already. Every thread calls this; `shared` is free
/// for other use afterwards.
__device__ __forceinline__ int take_task(std::int32_t* next_task, void* shared) {
    auto* const task = static_cast<std::int32_t*>(shared);
    if (threadIdx.x == 0) *task = atomicAdd(next_task, 1);
    __syncthreads();
    const std::int32_t taken = *task;
    __syncthreads();
    return taken;
}

__device__ __forceinline__ std::int32_t load_acquire(const std::int32_t* counter) {
    std::int32_t value;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

/// For a piece of dQ that one warp of each block adds to. All lanes call.
struct WarpTurn {
    __device__ __forceinline__ static void wait(const std::int32_t* counter, int turn) {
        if (threadIdx.x % 32 == 0) {
            while (load_acquire(counter) != turn) {
            }
        }
        __syncwarp();
    }
    __device__ __forceinline__ static void pass(std::int32_t* counter, int next_turn) {
        __threadfence();
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(counter), "r"(next_turn) : "memory");
    }
};

/// For a piece of dQ that all warps of a block add to. One thread calls, with barriers between the calls and
/// the additions; before the barrier ahead of pass() every thread has executed __threadfence().
struct BlockTurn {
    __device__ __forceinline__ static void wait(const std::int32_t* counter, int turn) {
        // Far longer than any kernel runs: only a defect gets there, and an error is better than a hang.
        constexpr int max_polls = 1 << 28;
        for (int polls = 0; load_acquire(counter) != turn; ++polls) {
            if (polls == max_polls) __trap();
            __nanosleep(40);
        }
    }
    __device__ __forceinline__ static void pass(std::int32_t* counter) {
        asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
    }
};

}  // namespace gradtile::attention::cuda::device
