#pragma once
/// INTERNAL. A cache in blocks: the rows of several texts in a tensor [blocks, block rows, ...], and a table
/// that says which blocks belong to a text. Without a table, each text has one block.
#include <bit>
#include <cstdint>

#include <gradtile/core/host_device.h>
#include <gradtile/core/internal/data_or_null.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// Finds the row of a text, on CPU and GPU.
struct BlockTable {
    const std::int32_t*
        entries;  ///< [slots, blocks_of_slot]; null: the block of a slot has the slot's number
    int slots, blocks_of_slot;
    int blocks;     ///< in the cache
    int log2_rows;  ///< of a block; 31 without a table, so that all rows are in block 0

    /// `table` is int32 [slots, blocks of a slot], or undefined.
    BlockTable(const Tensor& cache, const Tensor& table)
        : entries(data_or_null<std::int32_t>(table)),
          slots(static_cast<int>(table.defined() ? table.size(0) : cache.size(0))),
          blocks_of_slot(table.defined() ? static_cast<int>(table.size(1)) : 1),
          blocks(static_cast<int>(cache.size(0))),
          log2_rows(table.defined() ? std::countr_zero(static_cast<std::uint64_t>(cache.size(1))) : 31) {}

    /// The block that holds a row of a slot, or a number that is not in_cache().
    GRADTILE_HOST_DEVICE int block_of(int slot, int row) const {
        return entries == nullptr ? slot : entries[std::int64_t{slot} * blocks_of_slot + (row >> log2_rows)];
    }
    GRADTILE_HOST_DEVICE bool in_cache(int block) const { return block >= 0 && block < blocks; }
    GRADTILE_HOST_DEVICE int row_in_block(int row) const {
        return static_cast<int>(static_cast<unsigned>(row) & ((1u << log2_rows) - 1));
    }
    /// Whether `count` neighbouring rows are in one block.
    GRADTILE_HOST_DEVICE bool share_block(int row, int count) const {
        return row >> log2_rows == (row + count - 1) >> log2_rows;
    }
};

/// How many rows a slot can have.
inline std::int64_t rows_of_slot(const Tensor& cache, const Tensor& table) {
    return table.defined() ? table.size(1) * cache.size(1) : cache.size(1);
}

/// The fewest rows of a block. So a few neighbouring rows are in at most two blocks.
inline constexpr std::int64_t min_block_rows = 16;

/// Throws Error unless the table, if there is one, is contiguous int32 [slots, blocks], and the blocks of
/// `cache` have a power of two of at least min_block_rows rows.
inline void check_block_table(const char* op, const Tensor& cache, const Tensor& table) {
    if (!table.defined()) return;
    check(table.dtype() == DType::i32 && table.rank() == 2 && table.is_contiguous(), op, ": table ", table,
          "; expected contiguous int32 [slots, blocks of a slot]");
    check(cache.size(1) >= min_block_rows && std::has_single_bit(static_cast<std::uint64_t>(cache.size(1))),
          op, ": a table for blocks of ", cache.size(1), " rows; expected a power of two of at least ",
          min_block_rows);
}

}  // namespace gradtile
