#pragma once
/// Which work a thread block does, and in what order.
#include <algorithm>
#include <cstdint>

namespace gradtile::attention::cuda::device {

/// Maps a block's index to a (batch, head) and a part of its sequence. Blocks start in the order of their
/// index. Long tasks belong first, so that short ones fill the end of the run: parts are numbered by falling
/// work, and part 0 of all heads precedes part 1. But the parts of one head read the same tensors, so heads
/// are taken in sets that the L2 cache holds at once.
struct TaskOrder {
    int batch_heads = 0, parts = 0, cached_heads = 1;

    TaskOrder() = default;
    TaskOrder(std::int64_t batch_head_count, int part_count, std::int64_t bytes_per_head)
        : batch_heads(static_cast<int>(batch_head_count)), parts(part_count) {
        constexpr std::int64_t cache_bytes = 24 << 20;  // half of what Hopper's L2 holds
        cached_heads =
            static_cast<int>(std::clamp<std::int64_t>(cache_bytes / std::max<std::int64_t>(1, bytes_per_head),
                                                      1, std::max<std::int64_t>(1, batch_head_count)));
    }

    struct Task {
        int batch_head;  ///< batch * heads + head
        int part;
    };
    __device__ Task operator()(int index) const {
        const int first = index / (cached_heads * parts) * cached_heads, in_set = index - first * parts;
        const int width = min(cached_heads, batch_heads - first);
        return {first + in_set % width, in_set / width};
    }
};

/// The blocks of rows that see a block of keys: query head after query head of the group, rows upwards.
struct RowPosition {
    int head, row;
};
template <int rows>
struct RowBlocks {
    int begin_row, end_row;  ///< of every head; begin_row is a multiple of `rows`

    __device__ RowPosition after(RowPosition at) const {
        return at.row + rows < end_row ? RowPosition{at.head, at.row + rows}
                                       : RowPosition{at.head + 1, begin_row};
    }
};

}  // namespace gradtile::attention::cuda::device
