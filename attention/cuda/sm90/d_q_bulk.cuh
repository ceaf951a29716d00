#pragma once
/// Additions to dQ by one thread in the producer warpgroup. The thread lets the copy engine add dQ row blocks
/// from shared memory, so that consumers wait neither for turns nor for the memory system.
#include <gradtile/attention/cuda/common/turns.cuh>
#include <gradtile/attention/cuda/sm90/backward_shared.cuh>

namespace gradtile::attention::cuda::device {

/// Turns for the thread that adds in bulk. The thread passes a turn on when the turn's additions are
/// complete, and starts the next additions in the meantime. Without `in_turns`, the functions do nothing.
template <bool in_turns>
class BulkTurn {
  public:
    /// Waits until all key blocks after `block` have added.
    __device__ __forceinline__ void wait(const std::int32_t* turn, int block) {
        if constexpr (in_turns) {
            if (load_acquire(turn) != block) {
                pass_last(block);  // other thread blocks may wait for this turn
                while (load_acquire(turn) != block) {
                }
            }
            order_with_copies();
        }
    }
    /// Called after the additions that `turn` allows have been started. Passes the previous turn when its
    /// additions are complete.
    __device__ __forceinline__ void pass_previous(std::int32_t* turn, int block) {
        if constexpr (in_turns) {
            if (to_pass_ != nullptr) {
                await_stores<1>();
                pass(block);
            }
            to_pass_ = turn;
        }
    }
    __device__ __forceinline__ void pass_last(int block) {
        if constexpr (in_turns) {
            if (to_pass_ == nullptr) return;
            await_stores<0>();
            pass(block);
        }
    }

  private:
    __device__ __forceinline__ void pass(int block) {
        order_with_copies();
        asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(to_pass_), "r"(block - 1) : "memory");
        to_pass_ = nullptr;
    }

    std::int32_t* to_pass_ = nullptr;  ///< the turn whose additions may not be complete
};

/// Adds all tasks' dQ to the accumulators, in turns if Policy::in_turns. One thread runs this. Additions to
/// several row blocks are in flight at the same time.
template <class Policy>
__device__ __forceinline__ void add_in_bulk(const HopperBackwardParameters& p, std::uint32_t base,
                                            typename HopperBackwardShared<Policy>::Rings& rings) {
    using Shared = HopperBackwardShared<Policy>;
    constexpr HopperBackwardTiles tiles = Policy::tiles;
    using Task = TaskOf<Policy>;
    RingPosition tasks(rings.tasks);
    RingPosition d_q(rings.d_q);
    BulkTurn<Policy::in_turns> turn;
    AdditionCounter<Policy> counter(rings);
    order_with_copies();  // the previous kernel cleared the accumulators
    for (;;) {
        tasks.wait_full();
        const auto descriptor = rings.task[tasks.stage()];
        tasks.empty().arrive();
        tasks.advance();
        if (Task::is_end(p, descriptor)) break;
        const Task task(p, descriptor);
        const int end_head = (task.head + 1) * p.params.sizes.group;
        // The accumulators for query head h have index sums_offset + h.
        int sums_offset = task.batch_head(p, 0);
        if constexpr (Policy::may_sum_in_ring)
            if (p.ring.slots > 0) sums_offset = (task.slot(p) - task.head) * p.params.sizes.group;
        const auto row_blocks = task.row_blocks(p);
        RowPosition position{end_head, 0};
        if (task.has_rows()) position = row_blocks.first(task.head * p.params.sizes.group);
        for (; position.head < end_head; position = row_blocks.after(position)) {
            const std::int64_t row =
                static_cast<std::int64_t>(sums_offset + position.head) * p.params.padded_rows +
                task.first_padded_row() + position.row;
            std::int32_t* const turn_of_rows = p.params.turns + row / tiles.rows * 4 * tiles.consumers;
            d_q.wait_full();
            turn.wait(turn_of_rows, task.block);
            if constexpr (Policy::may_sum_in_ring) order_with_copies();  // finishers cleared the accumulators
            add_floats(p.params.d_q_sums + row * Policy::head_dim,
                       base + Shared::d_q + d_q.stage() * Shared::d_q_bytes, Shared::d_q_bytes);
            commit_stores();
            turn.pass_previous(turn_of_rows, task.block);
            wait_until_stores_have_read();
            d_q.empty().arrive();
            d_q.advance();
            counter.has_started(p, task, position);
        }
        turn.pass_last(task.block);
        counter.end_task(p, task);
    }
    await_stores<0>();
    counter.end();
}

}  // namespace gradtile::attention::cuda::device
