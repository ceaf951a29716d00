#pragma once
/// INTERNAL. The lengths of the scratch memory for row ranges: O(keys) for each head that has its own ranges.
#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention::cuda {

/// Rows [begin, end).
struct RowRange {
    int begin, end;
};
inline constexpr std::int64_t key_rows_bytes = 16, key_block_rows_bytes = 32;

/// How many heads have ranges of their own.
inline std::int64_t heads_with_row_ranges(const RowRanges& ranges, std::int64_t batch, std::int64_t heads) {
    return (ranges.batch_stride == 0 ? 1 : batch) * (ranges.head_stride == 0 ? 1 : heads);
}
/// Keys of a head in scratch memory. Kernels read whole key blocks, also at the end of the keys and of a
/// packed sequence. A key block has at most 256 keys.
inline std::int64_t padded_keys_of_ranges(std::int64_t keys) {
    constexpr std::int64_t most_keys = 256;
    return (keys / most_keys + 2) * most_keys;
}
/// Key blocks of a head: a packed sequence's blocks begin at its first key.
inline std::int64_t key_blocks_of_ranges(std::int64_t keys, const PackedSequences& packed,
                                         std::int64_t block_keys) {
    return keys / block_keys + packed.count + 2;
}
/// Blocks in a head's BlockOrder: row blocks or key blocks of 64 or more tokens.
inline std::int64_t ordered_blocks(std::int64_t queries, std::int64_t keys) {
    return (queries < keys ? keys : queries) / 64 + 1;
}
/// The int32 elements for key blocks of 16 or more keys.
inline std::int64_t row_ranges_elements(const RowRanges& ranges, std::int64_t batch, std::int64_t heads,
                                        std::int64_t queries, std::int64_t keys,
                                        const PackedSequences& packed) {
    constexpr std::int64_t element_bytes = sizeof(std::int32_t);
    return 1 + heads_with_row_ranges(ranges, batch, heads) *
                   (padded_keys_of_ranges(keys) * (key_rows_bytes / element_bytes) +
                    key_blocks_of_ranges(keys, packed, 16) * (key_block_rows_bytes / element_bytes) +
                    ordered_blocks(queries, keys));
}

}  // namespace gradtile::attention::cuda
