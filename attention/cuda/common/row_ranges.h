#pragma once
/// INTERNAL. Row ranges (Options::row_ranges) in kernels. A small kernel runs before each pass: it copies the
/// ranges to contiguous memory, and writes for each key block which rows see some of its keys and which rows
/// see all of them. Kernels then skip the blocks without a visible pair, and test single pairs only in blocks
/// that are partly visible. The values are in device memory, so all values are allowed: ranges are clipped to
/// the rows.
#include <climits>
#include <cstdint>

#include <gradtile/attention/cuda/common/row_ranges_shapes.h>
#include <gradtile/attention/cuda/common/task_order.cuh>

namespace gradtile::attention::cuda {

/// The rows that see a key: those in either range.
struct alignas(16) KeyRows {
    RowRange ranges[2];

    GRADTILE_HOST_DEVICE bool contain(int row) const {
        return (row >= ranges[0].begin && row < ranges[0].end) ||
               (row >= ranges[1].begin && row < ranges[1].end);
    }
    /// Whether one range contains all rows in [row, end_row).
    GRADTILE_HOST_DEVICE bool contain_all(int row, int end_row) const {
        return (row >= ranges[0].begin && end_row <= ranges[0].end) ||
               (row >= ranges[1].begin && end_row <= ranges[1].end);
    }
};

/// Each of a key's ranges, clipped to [0, queries). An empty range becomes [INT_MAX, INT_MIN), which is
/// neutral when ranges are united and contains no row when they are intersected.
GRADTILE_HOST_DEVICE inline KeyRows clipped_rows(const KeyRows& rows, int queries) {
    KeyRows clipped{};
    for (int n = 0; n < 2; ++n) {
        const int begin = rows.ranges[n].begin > 0 ? rows.ranges[n].begin : 0,
                  end = rows.ranges[n].end < queries ? rows.ranges[n].end : queries;
        clipped.ranges[n] = begin < end ? RowRange{begin, end} : RowRange{INT_MAX, INT_MIN};
    }
    return clipped;
}

/// The bits of the rows [row, row + rows) that are in a key's ranges; at most 32 rows.
template <int rows>
GRADTILE_HOST_DEVICE inline std::uint32_t row_bits(const KeyRows& key, int row) {
    const auto first_bits = [&](int end) {
        const int count = end <= row ? 0 : end >= row + rows ? rows : end - row;
        return count == 32 ? ~0u : (1u << count) - 1;
    };
    std::uint32_t bits = 0;
    for (const RowRange& range : key.ranges) bits |= first_bits(range.end) & ~first_bits(range.begin);
    return bits;
}

/// The rows that see a key block.
struct alignas(16) KeyBlockRows {
    KeyRows some{{{INT_MAX, INT_MIN}, {INT_MAX, INT_MIN}}};  ///< contain the rows that see some of the keys
    KeyRows all{{{INT_MIN, INT_MAX}, {INT_MIN, INT_MAX}}};   ///< these rows see all of the keys

    /// Adds a block's rows, or a key's, as some and as all. The empty ranges must be those of clipped_rows().
    GRADTILE_HOST_DEVICE void add(const KeyBlockRows& other) {
        for (int n = 0; n < 2; ++n) {
            const auto smaller = [](int a, int b) { return a < b ? a : b; };
            const auto larger = [](int a, int b) { return a < b ? b : a; };
            RowRange &own_some = some.ranges[n], &own_all = all.ranges[n];
            own_some = {smaller(own_some.begin, other.some.ranges[n].begin),
                        larger(own_some.end, other.some.ranges[n].end)};
            own_all = {larger(own_all.begin, other.all.ranges[n].begin),
                       smaller(own_all.end, other.all.ranges[n].end)};
        }
    }
    /// Whether a row in [row, end_row) may see a key.
    GRADTILE_HOST_DEVICE bool see_some(int row, int end_row) const {
        return (row < some.ranges[0].end && end_row > some.ranges[0].begin) ||
               (row < some.ranges[1].end && end_row > some.ranges[1].begin);
    }
    /// Whether every row in [row, end_row) sees every key. It may also be false if two ranges together
    /// contain the rows.
    GRADTILE_HOST_DEVICE bool see_all(int row, int end_row) const { return all.contain_all(row, end_row); }
};

/// The row blocks that see a key block: at most two runs of blocks, in increasing order. Begins are multiples
/// of `rows`; if there is only one run, runs[1] is empty, and so is runs[0] if there is none.
template <int rows>
struct RowRuns {
    RowRange runs[2] = {};

    /// Keeps only the rows in `limits`.
    GRADTILE_HOST_DEVICE static RowRuns of(const KeyBlockRows& block, RowRange limits) {
        // The range that begins first is the first run.
        const RowRange &a = block.some.ranges[0], &b = block.some.ranges[1];
        const bool swaps = b.begin < a.begin;
        const RowRange first = run_of(swaps ? b : a, limits), second = run_of(swaps ? a : b, limits);
        if (first.begin >= first.end) return {{second, {}}};
        if (second.begin >= second.end) return {{first, {}}};
        // Runs may share a row block, or one may contain the other.
        if (second.begin < first.end)
            return {{{first.begin, second.end > first.end ? second.end : first.end}, {}}};
        return {{first, second}};
    }
    GRADTILE_HOST_DEVICE bool is_empty() const { return runs[0].begin >= runs[0].end; }
    GRADTILE_HOST_DEVICE int blocks() const {
        int count = 0;
        for (const RowRange& run : runs) count += (run.end - run.begin + rows - 1) / rows;
        return count;
    }
    /// Calls f(block, change) for the row blocks at which the number of key blocks seen by a row block
    /// changes: +1 where a run begins, -1 after its end.
    GRADTILE_CALLS_EITHER_DEVICE
    template <class F>
    GRADTILE_HOST_DEVICE void for_each_change(F&& f) const {
        for (const RowRange& run : runs) {
            if (run.begin >= run.end) continue;
            f(run.begin / rows, 1);
            f((run.end + rows - 1) / rows, -1);
        }
    }
    /// The first row of the block after the one at `row`; -1 if that is the last one.
    GRADTILE_HOST_DEVICE int after(int row) const {
        row += rows;
        if (row < runs[0].end) return row;
        if (row >= runs[1].end) return -1;
        return row > runs[1].begin ? row : runs[1].begin;
    }

  private:
    GRADTILE_HOST_DEVICE static RowRange run_of(const RowRange& range, const RowRange& limits) {
        const int begin = range.begin > limits.begin ? range.begin : limits.begin,
                  end = range.end < limits.end ? range.end : limits.end;
        return begin < end ? RowRange{begin / rows * rows, end} : RowRange{0, 0};
    }
};

/// One head's ranges in kernels; keys and key blocks count from the sequence's start.
struct HeadRowRanges {
    const KeyRows* keys = nullptr;  ///< null: the call has no row ranges
    const KeyBlockRows* blocks = nullptr;

    GRADTILE_HOST_DEVICE explicit operator bool() const { return keys != nullptr; }
};

/// A block's place among `count` blocks: by decreasing work, then by number.
GRADTILE_HOST_DEVICE inline int rank_by_work(const int* work, int count, int block) {
    const int own = work[block];
    int rank = 0;
    for (int other = 0; other < block; ++other) rank += work[other] >= own ? 1 : 0;
    for (int other = block + 1; other < count; ++other) rank += work[other] > own ? 1 : 0;
    return rank;
}

/// The order in which the Hopper kernels compute blocks of rows (forward) or keys (backward): those that see
/// the most blocks, or are seen by the most blocks, come first (sm90/block_order.cuh).
struct BlockOrder {
    int* taken = nullptr;  ///< number of tasks that thread blocks have taken; the orders follow it in memory
    int count = 0;         ///< blocks per order
    int batch_step = 0, head_step = 0;  ///< in orders; 0 where the ranges are broadcast

    GRADTILE_HOST_DEVICE int* of(int batch, int head) const {
        return taken + 1 + (std::int64_t{batch} * batch_step + std::int64_t{head} * head_step) * count;
    }
};

/// A call's ranges, after launch_row_ranges().
struct DeviceRowRanges {
    const KeyRows* keys = nullptr;         ///< [B, H, padded_keys]; null: the call has no row ranges
    const KeyBlockRows* blocks = nullptr;  ///< [B, H, block_count]
    int padded_keys = 0, block_count = 0;
    int batch_step = 0, head_step = 0;  ///< in heads of these arrays; 0 where the ranges are broadcast
    int block_keys = 0;
    BlockOrder order = {};  ///< before launch_block_order() only its memory

    GRADTILE_HOST_DEVICE explicit operator bool() const { return keys != nullptr; }
    /// A packed sequence's blocks follow those of the sequences before it; without packing, both arguments
    /// are 0.
    GRADTILE_HOST_DEVICE static int first_block(int first_key, int sequence, int block_keys) {
        return first_key / block_keys + sequence;
    }
    GRADTILE_HOST_DEVICE HeadRowRanges of(int batch, int head, int first_key = 0, int sequence = 0) const {
        if (keys == nullptr) return {};
        const std::int64_t n = std::int64_t{batch} * batch_step + std::int64_t{head} * head_step;
        return {keys + n * padded_keys + first_key,
                blocks + n * block_count + first_block(first_key, sequence, block_keys)};
    }
};

/// Iterates over the row blocks that see a key block, as RowBlocks does for a call without row ranges. If a
/// head of the group sees the key block, each head has at least one row block, because kernels prepare the
/// next head's score rule while they use this head's.
template <int rows>
struct RangedRowBlocks {
    const DeviceRowRanges& ranges;
    RowRange limits;  ///< the rows that see the key block by the mask; it begins at a multiple of `rows`
    int batch, end_head, first_key, sequence, block;
    bool visits_all;  ///< visits all blocks in the limits, because additions to dQ take turns

    GRADTILE_HOST_DEVICE RowRuns<rows> runs(int head) const {
        KeyBlockRows seen{.some = {{{limits.begin, limits.end}, {INT_MAX, INT_MIN}}}};
        if (!visits_all) seen = ranges.of(batch, head, first_key, sequence).blocks[block];
        return RowRuns<rows>::of(seen, limits);
    }
    /// The first row block of the heads from `first_head` on; its head is end_head if there is none.
    GRADTILE_HOST_DEVICE device::RowPosition first(int first_head) const {
        for (int head = first_head; head < end_head; ++head)
            if (!runs(head).is_empty()) return first_of_head(first_head);
        return {end_head, 0};
    }
    GRADTILE_HOST_DEVICE device::RowPosition after(device::RowPosition position) const {
        const int row = runs(position.head).after(position.row);
        return row >= 0 ? device::RowPosition{position.head, row} : first_of_head(position.head + 1);
    }
    /// The row blocks of all heads from `head` on.
    GRADTILE_HOST_DEVICE int count(int head) const {
        int blocks = 0, without_blocks = 0;
        for (; head < end_head; ++head) {
            const int own = runs(head).blocks();
            blocks += own;
            if (own == 0) ++without_blocks;
        }
        return blocks > 0 ? blocks + without_blocks : 0;
    }

  private:
    GRADTILE_HOST_DEVICE device::RowPosition first_of_head(int head) const {
        if (head >= end_head) return {end_head, 0};
        const RowRuns<rows> own = runs(head);
        return {head, own.is_empty() ? limits.begin : own.runs[0].begin};
    }
};

/// Enqueues the kernel that reads the call's ranges, for key blocks of `block_keys` keys. `scratch` has
/// row_ranges_elements(). Returns an empty struct if the call has no row ranges.
DeviceRowRanges launch_row_ranges(const Context& ctx, const ResolvedOptions& options, std::int64_t batch,
                                  std::int64_t heads, int block_keys, const Tensor& scratch);

}  // namespace gradtile::attention::cuda
