#pragma once
/// Deterministic dQ: key blocks that add to the same piece of dQ take turns, so that its float32 additions
/// have the same order in every run. For each piece, a counter in global memory holds the current turn.
#include <cstdint>

namespace gradtile::attention::cuda::device {

/// Returns the next task's number. Tasks are numbered in the order in which thread blocks start. blockIdx
/// would not do: a block may only wait for blocks that already run, and CUDA does not guarantee that blocks
/// start in index order. All threads must call this function. After the call `shared` may be used for other
/// data.
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

/// Turns for a piece of dQ to which one warp per block adds. All lanes in the warp must call these functions.
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

/// Turns for a piece of dQ to which all warps in a block add. One thread calls these functions, with barriers
/// between the calls and the additions. Every thread must execute __threadfence() before the barrier that
/// precedes pass().
struct BlockTurn {
    __device__ __forceinline__ static void wait(const std::int32_t* counter, int turn) {
        // The limit is far longer than any kernel runs, so only a defect reaches it. An error is better than
        // an endless wait.
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
