#pragma once
/// The sums of dQ for the heads in flight only: a ring of slots that stays in the L2 cache. Three warps of
/// the producer's warpgroup, the finishers, count the additions to a block of rows. The block of keys that
/// adds last rounds the sums to 16 bits, stores dQ and clears the sums for the next head of the slot.
///
/// Memory order. The consumers' additions (red, relaxed) precede their arrivals at a barrier in shared
/// memory, which release to the thread block. A finisher's lane acquires them there, and its fence at GPU
/// scope comes before it counts; fences are cumulative, so a lane that reads a later count sees them all.
/// The finisher that reads the last count executes a fence and then loads all sums. It clears them before it
/// releases `finished`, which the producer of the slot's next head acquires; the consumers acquire the
/// cleared sums through the barrier of the loads.
///
/// No deadlock. Tasks are taken in the order of their numbers, and a task waits only for K/V heads whose
/// tasks all have smaller numbers, because a ring has at least as many slots as a set of TaskOrder has heads.
/// A producer that waits has started all loads of its earlier tasks, so that these end without it.
#include <gradtile/attention/cuda/hopper/parameters.h>
#include <gradtile/attention/cuda/hopper/tiles.h>
#include <gradtile/attention/cuda/16bit/backward_rows.cuh>
#include <gradtile/attention/cuda/device/turns.cuh>
#include <gradtile/core/cuda/device/mbarrier.cuh>

namespace gradtile::attention::cuda::device {

/// Measured on an H100 at head dim 64: fewer finishers are too slow; one fence for two blocks of rows is
/// faster than one for each or for eight.
constexpr int d_q_finishers = 3, counted_at_once = 2;

/// The number of blocks of `block_keys` keys that add to the block of rows from `row` on: KeyTask visits a
/// block of rows if a block of keys contains a key at or after the first one that row `row` sees, and begins
/// before the end of the keys that the last row sees.
__host__ __device__ inline int additions_to(const DeviceMask& mask, int row, int block_rows, int block_keys) {
    const int first = row + mask.offset - mask.left, begin = first > 0 ? first : 0,
              last_end = row + block_rows + mask.offset + mask.right,
              end = last_end < mask.keys ? last_end : mask.keys;
    if (row >= mask.queries || begin >= mask.keys || end <= 0) return 0;
    const int count = (end + block_keys - 1) / block_keys - begin / block_keys;
    return count > 0 ? count : 0;
}

/// Stages of the barriers between consumers and finishers: a stage is full when all consumer warps have added
/// dQ of a block of rows, and empty when a finisher has noticed that.
constexpr int added_stages = 12;

__device__ __forceinline__ void fence_gpu() {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/// The producer's part: waits before it loads. Without a ring, the functions do nothing.
template <bool sums_in_ring>
class SumsProducer {
  public:
    template <class Rings>
    __device__ __forceinline__ explicit SumsProducer(Rings&) {}
    template <class Task>
    __device__ __forceinline__ void wait_for_slot(const HopperBackwardParameters&, const Task&) {}
    __device__ __forceinline__ void wait_for_additions() {}
};
template <>
class SumsProducer<true> {
  public:
    template <class Rings>
    __device__ __forceinline__ explicit SumsProducer(Rings& rings) : added_(rings.added) {}
    /// Waits until the earlier users of a task's slot are finished.
    template <class Task>
    __device__ __forceinline__ void wait_for_slot(const HopperBackwardParameters& p, const Task& task) {
        const std::int32_t* const finished = p.ring.finished + task.slot(p);
        const auto needed =
            static_cast<unsigned>(task.earlier_uses(p)) * static_cast<unsigned>(p.ring.finished_per_use);
        while (static_cast<int>(static_cast<unsigned>(load_acquire(finished)) - needed) < 0) __nanosleep(100);
    }
    /// Waits until the consumers may add dQ of one more block of rows. The producer waits, so that consumers
    /// need not wait.
    __device__ __forceinline__ void wait_for_additions() {
        added_.wait_empty();
        added_.advance();
    }

  private:
    RingPosition<added_stages> added_;
};

/// Stores four numbers times `factor`, rounded to 16 bits.
template <class T>
__device__ __forceinline__ void store_four(std::uint16_t* to, float a, float b, float c, float d,
                                           float factor) {
    asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(to), "r"(pack<T>(a * factor, b * factor)),
                 "r"(pack<T>(c * factor, d * factor))
                 : "memory");
}

/// Rounds a block of rows of dQ to 16 bits, stores it and clears its sums. One warp calls this.
template <class T, class Policy>
__device__ __forceinline__ void finish_row_block(const Bits16BackwardParameters& p, float* sums,
                                                 std::uint16_t* d_q, int rows_left) {
    // All columns of 16 rows at a time, two fragments of 8 columns in each step of i. A lane loads 32
    // adjacent bytes of a pair of fragments: four columns of row lane / 2 % 8 and of the row 8 below. All
    // loads precede the stores, because each waits for the L2 cache.
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
        __syncwarp();  // all lanes have loaded
#pragma unroll
        for (int i = 0; i < pairs * 2; ++i) reinterpret_cast<float4*>(sums + i * 128)[lane] = float4{};
        sums += pairs * 256;
        rows_left -= 16;
        d_q += 16 * p.d_q.row_stride;
    }
}

/// The numbers that a finisher needs of its task. They lie in shared memory, because a finisher has few
/// registers and reads them only once for each group of blocks of rows.
struct FinisherTask {
    int batch, first_head;                       ///< of the query heads
    int slot, uses;                              ///< uses: of the slot, with this one
    int begin_row, head_row_blocks, row_blocks;  ///< blocks of rows that a head has, and that all heads have
};

/// Counts the additions of a thread block to blocks of rows, and finishes those that are complete. A finisher
/// takes counted_at_once blocks of rows, the next finisher the next ones. Lane i counts the i-th of
/// them.
template <class T, class Policy, class Task, class Rings>
__device__ __forceinline__ void finish_d_q_sums(const HopperBackwardParameters& p, Rings& rings,
                                                int finisher) {
    constexpr int rows = Policy::tiles.rows, stages = added_stages;
    volatile FinisherTask& task = rings.finisher_tasks[finisher];
    unsigned block = 0;           // the number of the next block of rows, of all tasks
    int other_groups = finisher;  // groups of other finishers before this finisher's next group
    for (unsigned i = 0;; ++i) {
        constexpr int task_stages = decltype(rings.tasks)::stages;
        const std::uint32_t barriers = shared_address(&rings.tasks) + i % task_stages * 8;
        Barrier(barriers).wait(i / task_stages % 2);
        const int index = rings.task[i % task_stages];
        Barrier(barriers + 8 * task_stages).arrive_as_warp();
        if (Task::is_end(p, index)) return;
        {
            const Task keys(p, index);
            if (!keys.has_rows()) continue;
            if (lane_index() == 0) {
                task.batch = keys.batch;
                task.first_head = keys.head * p.rows.sizes.group;
                task.slot = keys.slot(p);
                task.uses = keys.earlier_uses(p) + 1;
                task.begin_row = keys.begin_row;
                task.head_row_blocks = (keys.end_row - keys.begin_row + rows - 1) / rows;
                task.row_blocks = task.head_row_blocks * p.rows.sizes.group;
            }
        }
        __syncwarp();
        int left = task.row_blocks;
        while (left > 0) {
            const int count = min(left, counted_at_once);
            left -= count;
            block += count;
            if (--other_groups >= 0) continue;
            other_groups = d_q_finishers - 1;
            for (unsigned n = block - count; n != block; ++n) {
                const std::uint32_t added = shared_address(&rings.added) + n % stages * 8;
                Barrier(added).wait(n / stages % 2);
                Barrier(added + 8 * stages).arrive_as_warp();
            }
            fence_gpu();
            bool is_last = false;
            if (lane_index() < count) {
                const int in_task = task.row_blocks - left - count + lane_index(),
                          head = in_task / task.head_row_blocks,
                          row = task.begin_row + (in_task - head * task.head_row_blocks) * rows;
                const int of_ring = (task.slot * p.rows.sizes.group + head) * p.ring.row_blocks + row / rows;
                is_last = atomicAdd(p.ring.additions + of_ring, 1) + 1 ==
                          task.uses * additions_to(p.rows.mask, row, rows, Policy::tiles.keys);
            }
            unsigned complete = __ballot_sync(~0u, is_last);
            if (complete == 0) continue;
            fence_gpu();
            __syncwarp();
            do {
                const int in_task = task.row_blocks - left - count + __ffs(static_cast<int>(complete)) - 1,
                          head = in_task / task.head_row_blocks,
                          row = task.begin_row + (in_task - head * task.head_row_blocks) * rows;
                const int sums_head = task.slot * p.rows.sizes.group + head;
                complete &= complete - 1;
                finish_row_block<T, Policy>(
                    p.rows,
                    p.rows.d_q_sums +
                        (static_cast<std::int64_t>(sums_head) * p.rows.padded_rows + row) * Policy::head_dim,
                    p.rows.d_q.head(task.batch, task.first_head + head).row(row), p.rows.mask.queries - row);
                __syncwarp();
                if (lane_index() == 0)
                    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(p.ring.finished + task.slot)
                                 : "memory");
            } while (complete != 0);
        }
        __syncwarp();  // before lane 0 writes the next task
    }
}

/// Runs before the kernels that use the ring: clears its sums and counters, and dQ of rows that see no key.
template <int head_dim, int block_rows, int block_keys>
__global__ void __launch_bounds__(256)
    clear_d_q_ring_kernel(const __grid_constant__ HopperBackwardParameters p) {
    gradtile::cuda::device::await_predecessor();
    const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x,
                       threads = std::int64_t{gridDim.x} * blockDim.x;
    const std::int64_t row_blocks = std::int64_t{p.ring.slots} * p.rows.sizes.group * p.ring.row_blocks,
                       pieces = row_blocks * (block_rows * head_dim / 4);
    for (std::int64_t i = thread; i < pieces; i += threads)
        reinterpret_cast<float4*>(p.rows.d_q_sums)[i] = float4{};
    for (std::int64_t i = thread; i < row_blocks; i += threads) p.ring.additions[i] = 0;
    for (std::int64_t i = thread; i < p.ring.slots; i += threads) p.ring.finished[i] = 0;
    if (!p.ring.has_unseen_rows) return;
    const std::int64_t row_count = std::int64_t{p.rows.batch_size} * p.rows.sizes.heads * p.rows.mask.queries;
    for (std::int64_t i = thread; i < row_count; i += threads) {
        const int row = static_cast<int>(i % p.rows.mask.queries);
        const std::int64_t batch_head = i / p.rows.mask.queries;
        if (additions_to(p.rows.mask, row / block_rows * block_rows, block_rows, block_keys) > 0) continue;
        std::uint16_t* const d_q = p.rows.d_q
                                       .head(static_cast<int>(batch_head / p.rows.sizes.heads),
                                             static_cast<int>(batch_head % p.rows.sizes.heads))
                                       .row(row);
        for (int column = 0; column < p.rows.sizes.qk_dim; column += 8)
            *reinterpret_cast<uint4*>(d_q + column) = uint4{};
    }
}

}  // namespace gradtile::attention::cuda::device
