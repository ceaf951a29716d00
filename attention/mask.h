#pragma once
/// The mask: which keys a query row sees, and how much of a block is visible. All algorithms use this struct.
#include <cstdint>

#include <gradtile/core/host_device.h>

namespace gradtile::attention {

// Kernel files are compiled for different instruction sets. If the compiler emitted a shared inline function
// out of line in such a file, the linker might keep that copy for the whole program, and older machines could
// not run it.
#define GRADTILE_ATTENTION_INLINE [[gnu::always_inline]] GRADTILE_HOST_DEVICE inline

/// Half-open index range; empty if end <= begin.
struct IndexRange {
    std::int64_t begin;
    std::int64_t end;
};

enum class Coverage : std::uint8_t { none, partial, full };

/// Row i sees the keys j with i + offset - left <= j <= i + offset + right (-1 = unbounded) and 0 <= j <
/// keys. Both ends grow with i, so a block's first and last rows determine which keys the block's rows see.
struct Mask {
    std::int64_t queries = 0;
    std::int64_t keys = 0;
    std::int64_t offset = 0;
    std::int64_t left = -1;
    std::int64_t right = -1;

    /// Returns the keys that row i sees.
    GRADTILE_ATTENTION_INLINE IndexRange visible_keys(std::int64_t i) const {
        const std::int64_t first_key = left < 0 ? 0 : i + offset - left;
        const std::int64_t end_key = right < 0 ? keys : i + offset + right + 1;
        const std::int64_t begin = first_key < 0 ? 0 : first_key > keys ? keys : first_key;
        const std::int64_t end = end_key < begin ? begin : end_key > keys ? keys : end_key;
        return {begin, end};
    }
    /// The keys that at least one row sees; the row range must not be empty.
    GRADTILE_ATTENTION_INLINE IndexRange visible_keys(IndexRange rows) const {
        return {visible_keys(rows.begin).begin, visible_keys(rows.end - 1).end};
    }
    /// The rows that see at least one key in `columns`, which must not be empty; {0, 0} if no row does.
    GRADTILE_ATTENTION_INLINE IndexRange seeing_rows(IndexRange columns) const {
        const std::int64_t first_row = right < 0 ? 0 : columns.begin - offset - right;
        const std::int64_t end_row = left < 0 ? queries : columns.end - offset + left;
        const std::int64_t begin = first_row < 0 ? 0 : first_row > queries ? queries : first_row;
        const std::int64_t end = end_row > queries ? queries : end_row;
        return begin < end ? IndexRange{begin, end} : IndexRange{0, 0};
    }
    /// Whether none, some or all pairs of the block rows x columns are visible; both ranges must not be
    /// empty.
    GRADTILE_ATTENTION_INLINE Coverage coverage(IndexRange rows, IndexRange columns) const {
        const IndexRange top = visible_keys(rows.begin), bottom = visible_keys(rows.end - 1);
        if (bottom.end <= columns.begin || top.begin >= columns.end) return Coverage::none;
        const bool all = bottom.begin <= columns.begin && top.end >= columns.end;
        return all ? Coverage::full : Coverage::partial;
    }
};

/// A call's row ranges (Options::row_ranges): a second mask, which a row and a key must also satisfy. Key j
/// of a head is seen by the rows i with r[0] <= i < r[1] or r[2] <= i < r[3].
struct RowRanges {
    const std::int32_t* data = nullptr;  ///< null: the call has none, and every row sees every key
    std::int64_t batch_stride = 0, head_stride = 0, key_stride = 0;  ///< in elements; 0 if broadcast

    GRADTILE_ATTENTION_INLINE explicit operator bool() const { return data != nullptr; }
    GRADTILE_ATTENTION_INLINE const std::int32_t* of_key(std::int64_t batch, std::int64_t head,
                                                         std::int64_t key) const {
        return data + batch * batch_stride + head * head_stride + key * key_stride;
    }
    /// Whether row i sees a key. `key` is the key's position in the tensor; i counts from the start of the
    /// key's sequence.
    GRADTILE_ATTENTION_INLINE bool sees(std::int64_t batch, std::int64_t head, std::int64_t i,
                                        std::int64_t key) const {
        if (data == nullptr) return true;
        const std::int32_t* const r = of_key(batch, head, key);
        return (i >= r[0] && i < r[1]) || (i >= r[2] && i < r[3]);
    }
};

/// The rows that see a key and the keys that a row sees. Both are ranges, because both ends of a row's key
/// range grow with the row. Biases equal to -inf do not count.
struct SeenRanges {
    IndexRange rows, keys;
};
GRADTILE_ATTENTION_INLINE SeenRanges seen_ranges(const Mask& mask) {
    const IndexRange none{0, 0};
    if (mask.queries == 0 || mask.keys == 0) return {none, none};
    const IndexRange rows = mask.seeing_rows({0, mask.keys});
    if (rows.begin == rows.end) return {none, none};
    return {rows, mask.visible_keys(rows)};
}

}  // namespace gradtile::attention
