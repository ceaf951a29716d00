#pragma once
/// Assigns tasks to thread blocks and orders them.
#include <algorithm>
#include <cstdint>

#include <gradtile/core/host_device.h>

namespace gradtile::attention::cuda::device {

/// Maps a thread block's index to a (batch, head) and a part of its sequence. Thread blocks usually start in
/// index order. Long tasks should start first, so that short tasks fill the end of the run. Parts are
/// therefore numbered by decreasing work, and part 0 in all heads precedes part 1. But one head's parts read
/// the same tensors, which should stay in the L2 cache. Therefore the heads are divided into sets whose
/// tensors fit the cache, and this order applies within a set.
struct TaskOrder {
    int batch_heads = 0, parts = 0, cached_heads = 1;

    TaskOrder() = default;
    TaskOrder(std::int64_t batch_head_count, int part_count, std::int64_t bytes_per_head)
        : batch_heads(static_cast<int>(batch_head_count)), parts(part_count) {
        constexpr std::int64_t cache_bytes = 24 << 20;  // half of Hopper's L2 cache
        cached_heads =
            static_cast<int>(std::clamp<std::int64_t>(cache_bytes / std::max<std::int64_t>(1, bytes_per_head),
                                                      1, std::max<std::int64_t>(1, batch_head_count)));
    }
    /// Makes the sets about equal, with at least a task for every multiprocessor. Smaller sets would not
    /// reduce the tensors that are in use at the same time, and the last set's long tasks would start late.
    void balance_sets(int processors) {
        cached_heads = std::max(cached_heads, (processors + parts - 1) / std::max(1, parts));
        const int sets = std::max(1, (batch_heads + cached_heads - 1) / cached_heads);
        cached_heads = std::max(1, (batch_heads + sets - 1) / sets);
    }

    /// The order for sets that were chosen before.
    static TaskOrder with_sets(std::int64_t batch_head_count, int part_count, int set_heads) {
        TaskOrder order;
        order.batch_heads = static_cast<int>(batch_head_count);
        order.parts = part_count;
        order.cached_heads = set_heads;
        return order;
    }

    struct Task {
        int batch_head;  ///< batch * heads + head
        int part;
    };
    GRADTILE_HOST_DEVICE Task operator()(int index) const {
        // The heads that fill no whole set come first: in a last set, their long tasks would start when few
        // tasks are left for the other multiprocessors.
        const int rest = batch_heads % cached_heads;
        if (index < rest * parts) return {index % rest, index / rest};
        const int set = (index - rest * parts) / (cached_heads * parts), first = rest + set * cached_heads,
                  in_set = index - first * parts;
        return {first + in_set % cached_heads, in_set / cached_heads};
    }
    /// The order for row ranges. A few parts may have most of the work, as with keys that all rows see. Each
    /// head's longest parts therefore precede the sets: none starts when few tasks are left.
    GRADTILE_HOST_DEVICE Task longest_first(int index) const {
        constexpr int share = 16;
        const int longest = (parts + share - 1) / share;
        if (index < longest * batch_heads) return {index % batch_heads, index / batch_heads};
        TaskOrder rest = *this;
        rest.parts -= longest;
        const Task task = rest(index - longest * batch_heads);
        return {task.batch_head, longest + task.part};
    }
};

/// Iterates over the row blocks that see a key block: over the group's query heads and, for each head, over
/// the rows in increasing order.
struct RowPosition {
    int head, row;
};
template <int rows>
struct RowBlocks {
    int begin_row, end_row;  ///< the row range, equal for all heads; begin_row is divisible by `rows`

    GRADTILE_HOST_DEVICE RowPosition first(int head) const { return {head, begin_row}; }
    GRADTILE_HOST_DEVICE RowPosition after(RowPosition position) const {
        return position.row + rows < end_row ? RowPosition{position.head, position.row + rows}
                                             : RowPosition{position.head + 1, begin_row};
    }
};

}  // namespace gradtile::attention::cuda::device
