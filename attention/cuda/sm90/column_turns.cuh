#pragma once
/// Turns for the warpgroups in backward_columns.cuh, if additions to dQ have a fixed order. A turn is for one
/// warpgroup's columns in a row block. Warps in the producer warpgroup handle the turns: one warp waits for
/// them in global memory, and one per consumer warpgroup passes them on when the additions are complete.
/// Consumers only use barriers in shared memory. Measured on an H100 at head dim 256: a backward pass with
/// turns takes 1.2 times as long as one without, and 1.5 times if consumers wait themselves. One fence for
/// both warpgroups, instead of two, delays the next thread block: 1.3 times.
///
/// Memory order. The consumers' additions (red, relaxed) precede their arrivals at `added`, which release to
/// the thread block. The thread that passes the turn acquires them there. Then it executes a fence at GPU
/// scope and releases the counter; both are cumulative. The next waiter acquires the counter before it
/// arrives at `come`, where its consumers acquire.
///
/// No deadlock. Waits for a turn only depend on tasks that were taken before, and no thread waits for a turn
/// before it passes one.
#include <gradtile/attention/cuda/sm90/backward_steps.cuh>

namespace gradtile::attention::cuda::device {

/// Barriers in shared memory for one warpgroup's turns. A thread block's addition n uses stage n % stages in
/// round n / stages.
struct TurnBarriers {
    static constexpr int stages = 2;
    std::uint64_t come[stages];     ///< the turn has come
    std::uint64_t added[stages];    ///< all warps have started their additions
    std::uint64_t noticed[stages];  ///< the thread that passes the turn has seen `added`

    __device__ __forceinline__ void initialize() {
        for (int stage = 0; stage < stages; ++stage) {
            barrier(come, stage).initialize(1);
            barrier(added, stage).initialize(warpgroup_threads / 32);
            barrier(noticed, stage).initialize(1);
        }
    }
    __device__ __forceinline__ static Barrier barrier(const std::uint64_t (&barriers)[stages], unsigned n) {
        return Barrier(shared_address(barriers) + n % stages * 8);
    }
    __device__ __forceinline__ static void wait(const std::uint64_t (&barriers)[stages], unsigned n) {
        barrier(barriers, n).wait(n / stages % 2);
    }
};

/// The consumers' part. Without `in_turns`, the functions do nothing.
template <bool in_turns>
class TurnsOfConsumer {
  public:
    __device__ __forceinline__ explicit TurnsOfConsumer(TurnBarriers&) {}
    __device__ __forceinline__ void wait() {}
    __device__ __forceinline__ void has_added() {}
};
template <>
class TurnsOfConsumer<true> {
  public:
    __device__ __forceinline__ explicit TurnsOfConsumer(TurnBarriers& barriers) : barriers_(barriers) {}
    /// Waits until the warpgroup may add to a row block.
    __device__ __forceinline__ void wait() { barriers_.wait(barriers_.come, n_); }
    /// Called after the additions have been started. All lanes must call this function.
    __device__ __forceinline__ void has_added() {
        barriers_.barrier(barriers_.added, n_).arrive_as_warp();
        n_ = (n_ + 1) % (2 * TurnBarriers::stages);
    }

  private:
    TurnBarriers& barriers_;
    unsigned n_ = 0;  ///< modulo two rounds
};

/// Calls f(n, padded_row, block) for the thread block's addition n. `padded_row` is the row block's first
/// row, counted over all heads' padded rows; `block` is the key block. One thread runs this.
template <class Policy, class Rings, class F>
__device__ __forceinline__ void for_each_addition(const HopperBackwardParameters& p, Rings& rings, F&& f) {
    constexpr auto tiles = Policy::tiles;
    using Task = TaskOf<Policy>;
    RingPosition<tiles.stages> tasks(rings.tasks);
    unsigned n = 0;
    for (;;) {
        tasks.wait_full();
        const auto descriptor = rings.task[tasks.stage()];
        tasks.empty().arrive();
        tasks.advance();
        if (Task::is_end(p, descriptor)) return;
        const Task task(p, descriptor);
        const int end_head = (task.head + 1) * p.params.sizes.group;
        const RowBlocks<tiles.rows> row_blocks{task.begin_row, task.end_row};
        RowPosition position{task.has_rows() ? task.head * p.params.sizes.group : end_head, task.begin_row};
        for (; position.head < end_head; position = row_blocks.after(position))
            f(n++,
              static_cast<std::int64_t>(task.batch_head(p, position.head)) * p.params.padded_rows +
                  task.first_padded_row() + position.row,
              task.block);
    }
}

/// The turn counter for a warpgroup's columns in the row block that begins at `padded_row`.
template <class Policy>
__device__ __forceinline__ std::int32_t* turn_of(const HopperBackwardParameters& p, std::int64_t padded_row,
                                                 int warpgroup) {
    constexpr auto tiles = Policy::tiles;
    return p.params.turns + padded_row / tiles.rows * 4 * tiles.consumers + warpgroup;
}

/// Waits for both warpgroups' turns. Warpgroup 1 adds first, as in all thread blocks. One thread runs this.
template <class Policy, class Rings>
__device__ __forceinline__ void wait_for_turns(const HopperBackwardParameters& p, Rings& rings) {
    for_each_addition<Policy>(p, rings, [&](unsigned n, std::int64_t padded_row, int block) {
#pragma unroll
        for (int warpgroup = 1; warpgroup >= 0; --warpgroup) {
            TurnBarriers& barriers = rings.turns[warpgroup];
            if (n >= TurnBarriers::stages) barriers.wait(barriers.noticed, n - TurnBarriers::stages);
            const std::int32_t* const turn = turn_of<Policy>(p, padded_row, warpgroup);
            while (load_acquire(turn) != block) {
            }
            barriers.barrier(barriers.come, n).arrive();
        }
    });
}

/// Passes a warpgroup's turns on when its additions are complete. One thread runs this.
template <class Policy, class Rings>
__device__ __forceinline__ void pass_turns(const HopperBackwardParameters& p, Rings& rings, int warpgroup) {
    TurnBarriers& barriers = rings.turns[warpgroup];
    for_each_addition<Policy>(p, rings, [&](unsigned n, std::int64_t padded_row, int block) {
        barriers.wait(barriers.added, n);
        barriers.barrier(barriers.noticed, n).arrive();
        fence_gpu();
        asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(turn_of<Policy>(p, padded_row, warpgroup)),
                     "r"(block - 1)
                     : "memory");
    });
}

}  // namespace gradtile::attention::cuda::device
