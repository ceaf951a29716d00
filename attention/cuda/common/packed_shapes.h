#pragma once
/// INTERNAL. The lengths of packed sequences' scratch memory, which depend on the totals only: the host does
/// not know the sequences' lengths.
#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention::cuda {

/// In scratch memory with padded rows, packed sequences begin at multiples of this number.
constexpr int packed_row_padding = 128;
/// Returns how many padded rows all packed sequences need together.
inline std::int64_t padded_packed_rows(const PackedSequences& packed, std::int64_t total) {
    return (total / packed_row_padding + packed.count + 2) * packed_row_padding;
}

/// The backward pass pads the rows to a multiple of this number, which every row block size divides.
constexpr int backward_row_padding = packed_row_padding;
/// Turn counters per backward_row_padding rows: up to 8 warps for each row block, which has at least 32 rows.
constexpr int backward_turns = 8 * backward_row_padding / 32;

/// Elements of a table with tasks of `block` rows or keys each.
inline std::int64_t packed_task_count(std::int64_t total, std::int64_t sequences, std::int64_t block) {
    return total / block + sequences + 1;
}

/// A row block or a key block in one sequence.
struct alignas(16) PackedTask {
    int sequence;  ///< -1: the table has more elements than there are tasks
    int block;     ///< the block's number within the sequence
    int first_query, queries, first_key, keys;
    int unused[2];
};
/// The int32 elements of a table that is long enough for blocks with 16 or more rows or keys, with its
/// counters. 0 unless the call is packed.
inline std::int64_t packed_table_elements(const PackedSequences& packed, std::int64_t total) {
    const std::int64_t tasks = packed ? packed_task_count(total, packed.count, 16) + 1 : 0;
    return tasks * std::int64_t{sizeof(PackedTask) / sizeof(std::int32_t)};
}

}  // namespace gradtile::attention::cuda
