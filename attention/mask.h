#pragma once
/// Which keys a query row sees, and what that means for blocks. One struct serves every algorithm.
#include <cstdint>

#include <gradtile/core/host_device.h>

namespace gradtile::attention {

// Kernel files are compiled for different instruction sets; a shared inline function must never be emitted
// out of line there, or the linker might keep the copy that an older machine cannot run.
#define GRADTILE_ATTENTION_INLINE [[gnu::always_inline]] GRADTILE_HOST_DEVICE inline

/// Half-open range of indices; empty when end <= begin.
struct IndexRange {
    std::int64_t begin;
    std::int64_t end;
};

enum class Coverage : std::uint8_t { none, partial, full };

/// Row i sees the keys j with i + offset - left <= j <= i + offset + right (-1 = unbounded) and 0 <= j <
/// keys. Both ends grow with i, which is what lets blocks be judged by their corner rows.
struct Mask {
    std::int64_t queries = 0;
    std::int64_t keys = 0;
    std::int64_t offset = 0;
    std::int64_t left = -1;
    std::int64_t right = -1;

    /// Keys that row i sees.
    GRADTILE_ATTENTION_INLINE IndexRange visible_keys(std::int64_t i) const {
        const std::int64_t first = left < 0 ? 0 : i + offset - left;
        const std::int64_t past = right < 0 ? keys : i + offset + right + 1;
        const std::int64_t begin = first < 0 ? 0 : first > keys ? keys : first;
        const std::int64_t end = past < begin ? begin : past > keys ? keys : past;
        return {begin, end};
    }
    /// Keys that at least one of rows [begin, end) sees, end > begin.
    GRADTILE_ATTENTION_INLINE IndexRange visible_keys(IndexRange rows) const {
        return {visible_keys(rows.begin).begin, visible_keys(rows.end - 1).end};
    }
    /// Rows that see at least one of the keys [begin, end), end > begin; {0, 0} when none does.
    GRADTILE_ATTENTION_INLINE IndexRange seeing_rows(IndexRange columns) const {
        const std::int64_t first = right < 0 ? 0 : columns.begin - offset - right;
        const std::int64_t past = left < 0 ? queries : columns.end - offset + left;
        const std::int64_t begin = first < 0 ? 0 : first > queries ? queries : first;
        const std::int64_t end = past > queries ? queries : past;
        return begin < end ? IndexRange{begin, end} : IndexRange{0, 0};
    }
    /// How much of the block rows x columns is visible; both ranges non-empty.
    GRADTILE_ATTENTION_INLINE Coverage coverage(IndexRange rows, IndexRange columns) const {
        const IndexRange top = visible_keys(rows.begin), bottom = visible_keys(rows.end - 1);
        if (bottom.end <= columns.begin || top.begin >= columns.end) return Coverage::none;
        const bool all = bottom.begin <= columns.begin && top.end >= columns.end;
        return all ? Coverage::full : Coverage::partial;
    }
};

}  // namespace gradtile::attention
