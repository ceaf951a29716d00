#pragma once
/// The Hopper forward kernel's tasks, shared memory and producer (forward.cuh).
#include <gradtile/attention/cuda/sm90/parameters.h>
#include <gradtile/attention/cuda/sm90/tiles.h>
#include <gradtile/attention/cuda/common/panel_tile.cuh>
#include <gradtile/attention/cuda/sm90/block_order.cuh>
#include <gradtile/attention/cuda/sm90/seen_blocks.cuh>
#include <gradtile/core/cuda/device/warpgroup.cuh>

namespace gradtile::attention::cuda::device {

/// A row block of one head.
struct RowTask {
    int batch, head;
    int row;  ///< -1: there are no more tasks

    __device__ static RowTask load(const volatile RowTask& from) { return {from.batch, from.head, from.row}; }
    __device__ const DeviceMask& mask(const HopperForwardParameters& p) const { return p.mask; }
    __device__ BoxPosition row_box(const HopperForwardParameters&, int column, int box_row) const {
        return {column, box_row, head, batch};
    }
    __device__ BoxPosition key_box(const HopperForwardParameters&, int key_head, int box_row) const {
        return {0, box_row, key_head, batch};
    }
    __device__ float* lse(const HopperForwardParameters& p) const {
        return p.lse + (static_cast<std::int64_t>(batch) * p.sizes.heads + head) * p.mask.queries;
    }
    __device__ bool has_sink(const HopperForwardParameters& p) const { return p.sink != nullptr; }
    __device__ int sequence() const { return batch; }
};

/// A row block of one head in a packed sequence. Rows and keys count from the sequence's start.
struct PackedRowTask {
    int head;
    int row;  ///< -1: there are no more tasks
    int first_query, queries, first_key, keys;
    int index;  ///< the sequence's number

    __device__ static PackedRowTask load(const volatile PackedRowTask& from) {
        return {from.head, from.row, from.first_query, from.queries, from.first_key, from.keys, from.index};
    }
    __device__ DeviceMask mask(const HopperForwardParameters& p) const {
        DeviceMask mask = p.mask;
        mask.queries = queries;
        mask.keys = keys;
        mask.offset = p.packed.top_left ? 0 : keys - queries;
        return mask;
    }
    __device__ BoxPosition row_box(const HopperForwardParameters& p, int column, int box_row) const {
        return packed_box({p.mask.queries, first_query, queries}, column, box_row, head);
    }
    __device__ BoxPosition key_box(const HopperForwardParameters& p, int key_head, int box_row) const {
        return packed_box({p.mask.keys, first_key, keys}, 0, box_row, key_head);
    }
    __device__ float* lse(const HopperForwardParameters& p) const {
        return p.lse + static_cast<std::int64_t>(head) * p.mask.queries + first_query;
    }
    __device__ bool has_sink(const HopperForwardParameters& p) const {
        return p.sink != nullptr && index != p.packed.count;
    }
    __device__ int sequence() const { return index; }
};

/// A thread block's shared memory.
template <class Policy>
struct HopperForwardShared {
    static constexpr HopperForwardTiles tiles = Policy::tiles;
    using Task = std::conditional_t<Policy::is_packed, PackedRowTask, RowTask>;
    using QTile = PanelTile<tiles.rows(), Policy::qk_dim>;
    using KTile = PanelTile<tiles.keys, Policy::qk_dim>;
    using VTile = PanelTile<tiles.keys, Policy::v_dim>;
    using OTile = PanelTile<tiles.rows(), Policy::v_dim>;
    static constexpr int q = 0, k = q + tiles.q_stages * QTile::bytes, v = k + tiles.stages * KTile::bytes,
                         v_end = v + tiles.stages * VTile::bytes, o = tiles.has_o() ? v_end : q,
                         rings = tiles.has_o() ? o + OTile::bytes : v_end;
    struct Rings {
        Ring<tiles.q_stages> q;
        Ring<tiles.stages> k, v;
        Task tasks[tiles.q_stages];  ///< one per Q stage
        Philox::Key dropout_key;     ///< only if may_drop(Policy::rule)
        [[no_unique_address]] SeenBlocksShared<Policy> seen;
    };
    static_assert(sizeof(Rings) <= HopperForwardTiles::ring_bytes);
    static_assert(OTile::bytes <= QTile::bytes || tiles.has_o());
};

/// The key blocks that rows see, [begin, end).
struct KeyBlocks {
    int begin, end;

    template <int keys>
    __device__ static KeyBlocks seen_by(const DeviceMask& mask, int row, int rows) {
        rows = min(rows, mask.queries - row);
        if (rows <= 0) return {0, 0};
        const int begin = mask.first_key(row) / keys;
        return {begin, max(begin, (mask.end_key(row + rows - 1) + keys - 1) / keys)};
    }
};

/// Calls f(task) for each row block that this thread block computes. A task in p.order is a pair of row
/// blocks, or a single one.
template <class Policy, class F>
__device__ __forceinline__ void for_each_row_task(const HopperForwardParameters& p, F&& f) {
    constexpr HopperForwardTiles tiles = Policy::tiles;
    for (int index = static_cast<int>(blockIdx.x); index < p.tasks; index += static_cast<int>(gridDim.x)) {
        const TaskOrder::Task task = p.order(index);
        const int batch = task.batch_head / p.sizes.heads, head = task.batch_head - batch * p.sizes.heads;
        // The last rows come first: under a causal mask they have the most work.
        const int last = p.row_blocks - 1 - task.part;
        f(RowTask{batch, head, last * tiles.rows()});
        if (p.pairs && task.part < last) f(RowTask{batch, head, task.part * tiles.rows()});
    }
}
/// Calls f(task) for this thread block's tasks in a call with row ranges. All lanes of a warp call this. The
/// host does not know which blocks are visible, so thread blocks take tasks from a counter, long ones first.
template <class Policy, class F>
__device__ __forceinline__ void for_each_ranged_row_task(const HopperForwardParameters& p, F&& f) {
    const BlockOrder& order = p.row_ranges.order;
    for (int index = static_cast<int>(blockIdx.x); index < p.tasks;) {
        // The result of atomicAdd arrives while this task's copies are started.
        int next = 0;
        if (lane_index() == 0) next = static_cast<int>(gridDim.x) + atomicAdd(order.taken, 1);
        const TaskOrder::Task task = p.order.longest_first(index);
        const int batch = task.batch_head / p.sizes.heads, head = task.batch_head - batch * p.sizes.heads;
        f(RowTask{batch, head, order.of(batch, head)[task.part] * Policy::tiles.rows()});
        index = __shfl_sync(~0u, next, 0);
    }
}
/// Calls f(task) for this thread block's tasks in packed sequences. The sequence lengths are not known when
/// the kernel is launched, so thread blocks take tasks from a counter, long ones first.
template <class Policy, class F>
__device__ __forceinline__ void for_each_packed_row_task(const HopperForwardParameters& p, F&& f) {
    PackedCounters* const counters = p.row_tasks.counters();
    TaskOrder order = p.order;
    order.parts = counters->tasks;
    const int tasks = order.batch_heads * order.parts;
    for (int index = static_cast<int>(blockIdx.x); index < tasks;) {
        // The result of atomicAdd arrives while this task's copies are started.
        const int next = static_cast<int>(gridDim.x) + atomicAdd(&counters->taken, 1);
        const TaskOrder::Task order_task = order(index);
        const PackedTask task = p.row_tasks.first[order_task.part];
        f(PackedRowTask{order_task.batch_head, task.block * Policy::tiles.rows(), task.first_query,
                        task.queries, task.first_key, task.keys, task.sequence});
        index = next;
    }
}

/// Starts all copies to shared memory. One thread runs this.
template <class Policy>
__device__ __forceinline__ void produce(const HopperForwardParameters& p, std::uint32_t base,
                                        typename HopperForwardShared<Policy>::Rings& rings) {
    using Shared = HopperForwardShared<Policy>;
    constexpr HopperForwardTiles tiles = Policy::tiles;
    RingPosition q(rings.q);
    RingPosition k(rings.k), v(rings.v);
    const auto load_rows = [&](const typename Shared::Task& task) {
        const int key_head = task.head / p.sizes.group;
        const auto blocks = KeyBlocks::seen_by<tiles.keys>(task.mask(p), task.row, tiles.rows());
        q.wait_empty();
        rings.tasks[q.stage()] = task;
        q.full().arrive_and_expect(Shared::QTile::bytes);
        Shared::QTile::load(base + Shared::q + q.stage() * Shared::QTile::bytes, p.q,
                            task.row_box(p, 0, task.row), q.full());
        q.advance();
        for (int block = blocks.end - 1; block >= blocks.begin; --block) {
            const BoxPosition box = task.key_box(p, key_head, block * tiles.keys);
            k.wait_empty();
            k.full().arrive_and_expect(Shared::KTile::bytes);
            Shared::KTile::load(base + Shared::k + k.stage() * Shared::KTile::bytes, p.k, box, k.full());
            k.advance();
            v.wait_empty();
            v.full().arrive_and_expect(Shared::VTile::bytes);
            Shared::VTile::load(base + Shared::v + v.stage() * Shared::VTile::bytes, p.v, box, v.full());
            v.advance();
        }
    };
    if constexpr (Policy::is_packed) {
        for_each_packed_row_task<Policy>(p, load_rows);
    } else {
        for_each_row_task<Policy>(p, load_rows);
    }
    q.wait_empty();
    rings.tasks[q.stage()].row = -1;
    q.full().arrive();
}

/// The same with row ranges. One warp runs this; its first lane starts the copies.
template <class Policy>
__device__ __forceinline__ void produce_seen_blocks(const HopperForwardParameters& p, std::uint32_t base,
                                                    typename HopperForwardShared<Policy>::Rings& rings) {
    using Shared = HopperForwardShared<Policy>;
    constexpr HopperForwardTiles tiles = Policy::tiles;
    const bool starts_copies = lane_index() == 0;
    RingPosition q(rings.q);
    RingPosition k(rings.k), v(rings.v);
    for_each_ranged_row_task<Policy>(p, [&](const RowTask& task) {
        const int key_head = task.head / p.sizes.group,
                  end_row = min(task.row + tiles.rows(), p.mask.queries);
        const auto limits = KeyBlocks::seen_by<tiles.keys>(p.mask, task.row, tiles.rows());
        const HeadRowRanges ranges = p.row_ranges.of(task.batch, task.head);
        int block = previous_seen_block(ranges.blocks, limits.end - 1, limits.begin, task.row, end_row);
        q.wait_empty();
        if (starts_copies) {
            rings.tasks[q.stage()] = task;
            rings.seen.has_blocks[q.stage()] = block >= limits.begin ? 1 : 0;
            q.full().arrive_and_expect(Shared::QTile::bytes);
            Shared::QTile::load(base + Shared::q + q.stage() * Shared::QTile::bytes, p.q,
                                task.row_box(p, 0, task.row), q.full());
        }
        q.advance();
        while (block >= limits.begin) {
            const int next = previous_seen_block(ranges.blocks, block - 1, limits.begin, task.row, end_row);
            const BoxPosition box = task.key_box(p, key_head, block * tiles.keys);
            k.wait_empty();
            if (starts_copies) {
                rings.seen.words[k.stage()] =
                    SeenBlock::of(block, ranges.blocks[block], task.row, tiles.consumers, next < limits.begin)
                        .word;
                k.full().arrive_and_expect(Shared::KTile::bytes);
                Shared::KTile::load(base + Shared::k + k.stage() * Shared::KTile::bytes, p.k, box, k.full());
            }
            k.advance();
            v.wait_empty();
            if (starts_copies) {
                v.full().arrive_and_expect(Shared::VTile::bytes);
                Shared::VTile::load(base + Shared::v + v.stage() * Shared::VTile::bytes, p.v, box, v.full());
            }
            v.advance();
            block = next;
        }
    });
    q.wait_empty();
    if (starts_copies) {
        rings.tasks[q.stage()].row = -1;
        q.full().arrive();
    }
}

}  // namespace gradtile::attention::cuda::device
