#pragma once
/// The dQ accumulator ring: float32 accumulators for the heads in flight only, in slots that stay in the L2
/// cache. The thread that adds dQ (d_q_bulk.cuh) counts the additions to each row block. The thread block
/// that adds last hands the row block to one of its finishers, two warps in the producer warpgroup: a
/// finisher rounds the accumulators to 16 bits, stores dQ and clears the accumulators for the slot's next
/// head.
///
/// Memory order. A thread counts an addition after it is complete and ordered with its other accesses
/// (await_stores, order_with_copies); the count releases at GPU scope. The thread that reads the last count
/// executes a fence and hands the rows over, so the finisher sees all additions. The finisher clears the
/// accumulators before it releases `finished`, which the producer for the slot's next head acquires; the
/// adding thread acquires the cleared accumulators through the load barriers and the dQ barriers.
///
/// No deadlock. Tasks are taken in numerical order, and a task waits only for K/V heads whose tasks all have
/// smaller numbers, because a ring has at least as many slots as a TaskOrder set has heads. A producer that
/// waits has started all loads for its earlier tasks, so that these end without it.
#include <gradtile/attention/cuda/sm90/parameters.h>
#include <gradtile/attention/cuda/sm90/tiles.h>
#include <gradtile/attention/cuda/common/backward_rows.cuh>
#include <gradtile/attention/cuda/common/turns.cuh>
#include <gradtile/core/cuda/device/mbarrier.cuh>

namespace gradtile::attention::cuda::device {

/// Returns how many key blocks of `block_keys` keys add to the row block that starts at `row`. KeyTask visits
/// this row block if the key block contains a key at or after the first key that `row` sees, and begins
/// before the end of the keys that the last row sees.
__host__ __device__ inline int additions_to(const DeviceMask& mask, int row, int block_rows, int block_keys) {
    const int first = row + mask.offset - mask.left, begin = first > 0 ? first : 0,
              last_end = row + block_rows + mask.offset + mask.right,
              end = last_end < mask.keys ? last_end : mask.keys;
    if (row >= mask.queries || begin >= mask.keys || end <= 0) return 0;
    const int count = (end + block_keys - 1) / block_keys - begin / block_keys;
    return count > 0 ? count : 0;
}

__device__ __forceinline__ void fence_gpu() {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/// Waits until the heads that used the task's slot before are finished.
template <class Task>
__device__ __forceinline__ void wait_for_slot(const HopperBackwardParameters& p, const Task& task) {
    if (p.ring.slots == 0) return;
    const std::int32_t* const finished = p.ring.finished + task.slot(p);
    const auto needed =
        static_cast<unsigned>(task.earlier_uses(p)) * static_cast<unsigned>(p.ring.finished_per_use);
    while (static_cast<int>(static_cast<unsigned>(load_acquire(finished)) - needed) < 0) __nanosleep(100);
}

constexpr int d_q_finishers = 2;

/// A row block whose accumulators are complete.
struct FinishedBlock {
    int batch, head, row;  ///< query head and first row; head -1: there are no more blocks
    int slot, sums_head;   ///< in the ring
};

/// Row blocks on their way to the finishers, in shared memory. Finisher i takes every second row block,
/// starting with block i.
struct FinishedRows {
    Ring<2 * d_q_finishers> ring;
    FinishedBlock blocks[2 * d_q_finishers];
};

/// Counts a thread block's additions to row blocks, and hands complete row blocks to the finishers. The
/// thread that adds calls this. The thread must not wait for the memory system, so an addition is counted two
/// row blocks after its start, and the count is read with the next row block. Without a ring, the functions
/// do nothing.
template <class Policy, bool may_sum_in_ring = Policy::may_sum_in_ring>
class AdditionCounter {
  public:
    template <class Rings>
    __device__ __forceinline__ explicit AdditionCounter(Rings&) {}
    template <class Task>
    __device__ __forceinline__ void has_started(const HopperBackwardParameters&, const Task&, RowPosition) {}
    template <class Task>
    __device__ __forceinline__ void end_task(const HopperBackwardParameters&, const Task&) {}
    __device__ __forceinline__ void end() {}
};
template <class Policy>
class AdditionCounter<Policy, true> {
  public:
    template <class Rings>
    __device__ __forceinline__ explicit AdditionCounter(Rings& rings)
        : finished_(rings.finished), ring_(rings.finished.ring) {}
    /// Called when the additions to the rows at `position` have been started.
    template <class Task>
    __device__ __forceinline__ void has_started(const HopperBackwardParameters& p, const Task& task,
                                                RowPosition position) {
        if (p.ring.slots == 0) return;
        await_stores<2>();
        advance(p, task);
        started_[1] = started_[0];
        started_[0] = position;
    }
    /// Called after a task's last rows. Counts all its additions.
    template <class Task>
    __device__ __forceinline__ void end_task(const HopperBackwardParameters& p, const Task& task) {
        if (p.ring.slots == 0) return;
        await_stores<0>();
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            advance(p, task);
            started_[1] = started_[0];
            started_[0] = none;
        }
    }
    /// Tells the finishers that there are no more blocks.
    __device__ __forceinline__ void end() {
        for (int i = 0; i < d_q_finishers; ++i) hand_over({.head = -1});
    }

  private:
    static constexpr RowPosition none{-1, 0};

    /// Hands over the rows that the last call counted if they are complete, and counts the additions that
    /// were started before the last two calls to has_started().
    template <class Task>
    __device__ __forceinline__ void advance(const HopperBackwardParameters& p, const Task& task) {
        constexpr int rows = Policy::tiles.rows;
        const int slot = task.slot(p), sums_offset = (slot - task.head) * p.params.sizes.group;
        if (counted_.head >= 0) {
            const int needed = (task.earlier_uses(p) + 1) *
                               additions_to(p.params.mask, counted_.row, rows, Policy::tiles.keys);
            if (count_ + 1 == needed) {
                fence_gpu();
                hand_over({task.batch, counted_.head, counted_.row, slot, sums_offset + counted_.head});
            }
        }
        counted_ = started_[1];
        if (counted_.head < 0) return;
        order_with_copies();
        asm volatile(
            "atom.release.gpu.global.add.s32 %0, [%1], 1;"
            : "=r"(count_)
            : "l"(p.ring.additions + (sums_offset + counted_.head) * p.ring.row_blocks + counted_.row / rows)
            : "memory");
    }
    __device__ __forceinline__ void hand_over(const FinishedBlock& block) {
        ring_.wait_empty();
        finished_.blocks[ring_.stage()] = block;
        ring_.full().arrive();
        ring_.advance();
    }

    FinishedRows& finished_;
    RingPosition<2 * d_q_finishers> ring_;
    RowPosition started_[2] = {none, none};  ///< the latest ones first
    RowPosition counted_ = none;
    int count_ = 0;  ///< before the addition to counted_
};

/// Stores four numbers times `factor`, rounded to 16 bits.
template <class T>
__device__ __forceinline__ void store_four(std::uint16_t* to, float a, float b, float c, float d,
                                           float factor) {
    asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(to), "r"(pack<T>(a * factor, b * factor)),
                 "r"(pack<T>(c * factor, d * factor))
                 : "memory");
}

/// Rounds a dQ row block to 16 bits, stores it and clears its accumulators. One warp calls this.
template <class T, class Policy>
__device__ __forceinline__ void finish_row_block(const Bits16BackwardParameters& p, float* sums,
                                                 std::uint16_t* d_q, int rows_left) {
    // Processes all columns for 16 rows at a time, with two 8-column fragments in each step i. A lane loads
    // 32 adjacent bytes from each fragment pair: four columns in row lane / 2 % 8 and four in the row 8
    // below. All loads precede the stores, because each load waits for the L2 cache.
    constexpr int pairs = Policy::head_dim / 16;
    const int lane = lane_index(), column = lane / 16 * 8 + lane % 2 * 4;
    const float factor = Policy::may_drop ? p.scale * p.dropout_scale : p.scale;
    rows_left -= lane / 2 % 8;
    d_q += lane / 2 % 8 * p.d_q.row_stride + column;
#pragma unroll 1
    for (int strip = 0; strip < Policy::tiles.rows / 16; ++strip) {
        float4 x[pairs][2];
#pragma unroll
        for (int i = 0; i < pairs; ++i)
#pragma unroll
            for (int j = 0; j < 2; ++j)
                x[i][j] = reinterpret_cast<const float4*>(sums + i * 256)[lane * 2 + j];
#pragma unroll
        for (int i = 0; i < pairs; ++i) {
            if (column < p.sizes.qk_dim - i * 16) {
                std::uint16_t* const to = d_q + i * 16;
                if (rows_left > 0) store_four<T>(to, x[i][0].x, x[i][0].y, x[i][1].x, x[i][1].y, factor);
                if (rows_left > 8)
                    store_four<T>(to + 8 * p.d_q.row_stride, x[i][0].z, x[i][0].w, x[i][1].z, x[i][1].w,
                                  factor);
            }
        }
        if constexpr (Policy::rule == HopperRule::biases) {
            float zero = 0;
#pragma unroll
            for (int i = 0; i < pairs; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j)
                    for (const float value : {x[i][j].x, x[i][j].y, x[i][j].z, x[i][j].w})
                        zero = fmaf(value, 0.0f, zero);
            if (!(zero == 0)) *p.non_finite = 1;
        }
        __syncwarp();  // all lanes have loaded
#pragma unroll
        for (int i = 0; i < pairs * 2; ++i) reinterpret_cast<float4*>(sums + i * 128)[lane] = float4{};
        sums += pairs * 256;
        rows_left -= 16;
        d_q += 16 * p.d_q.row_stride;
    }
}

/// Finishes the row blocks that the thread block completes. One warp, the finisher, calls this.
template <class T, class Policy>
__device__ __forceinline__ void finish_d_q_sums(const HopperBackwardParameters& p, FinishedRows& finished,
                                                int finisher) {
    for (unsigned i = static_cast<unsigned>(finisher);; i += d_q_finishers) {
        constexpr unsigned stages = 2 * d_q_finishers;
        const std::uint32_t full = shared_address(&finished.ring) + i % stages * 8;
        Barrier(full).wait(i / stages % 2);
        const FinishedBlock block = finished.blocks[i % stages];
        Barrier(full + 8 * stages).arrive_as_warp();
        if (block.head < 0) return;
        finish_row_block<T, Policy>(
            p.params,
            p.params.d_q_sums +
                (static_cast<std::int64_t>(block.sums_head) * p.params.padded_rows + block.row) *
                    Policy::head_dim,
            p.params.d_q.head(block.batch, block.head).row(block.row), p.params.mask.queries - block.row);
        __syncwarp();
        if (lane_index() == 0)
            asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(p.ring.finished + block.slot)
                         : "memory");
    }
}

/// Runs before the kernels that use the ring: clears its accumulators and counters, and dQ for rows that see
/// no key.
template <int head_dim, int block_rows, int block_keys>
__global__ void __launch_bounds__(256)
    clear_d_q_ring_kernel(const __grid_constant__ HopperBackwardParameters p) {
    gradtile::cuda::device::await_predecessor();
    const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x,
                       threads = std::int64_t{gridDim.x} * blockDim.x;
    const std::int64_t row_blocks = std::int64_t{p.ring.slots} * p.params.sizes.group * p.ring.row_blocks,
                       pieces = row_blocks * (block_rows * head_dim / 4);
    for (std::int64_t i = thread; i < pieces; i += threads)
        reinterpret_cast<float4*>(p.params.d_q_sums)[i] = float4{};
    for (std::int64_t i = thread; i < row_blocks; i += threads) p.ring.additions[i] = 0;
    for (std::int64_t i = thread; i < p.ring.slots; i += threads) p.ring.finished[i] = 0;
    if (!p.ring.has_unseen_rows) return;
    const std::int64_t row_count =
        std::int64_t{p.params.batch_size} * p.params.sizes.heads * p.params.mask.queries;
    for (std::int64_t i = thread; i < row_count; i += threads) {
        const int row = static_cast<int>(i % p.params.mask.queries);
        const std::int64_t batch_head = i / p.params.mask.queries;
        if (additions_to(p.params.mask, row / block_rows * block_rows, block_rows, block_keys) > 0) continue;
        std::uint16_t* const d_q = p.params.d_q
                                       .head(static_cast<int>(batch_head / p.params.sizes.heads),
                                             static_cast<int>(batch_head % p.params.sizes.heads))
                                       .row(row);
        for (int column = 0; column < p.params.sizes.qk_dim; column += 8)
            *reinterpret_cast<uint4*>(d_q + column) = uint4{};
    }
}

}  // namespace gradtile::attention::cuda::device
