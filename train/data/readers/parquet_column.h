#pragma once
/// Reads one column of a Parquet file's row group, page by page.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/train/data/readers/parquet_values.h>

namespace gradtile::parquet {

/// Holds one page and the column's dictionary in memory.
class ColumnReader {
  public:
    /// Throws Error that begins with "FILE: row group N, column 'NAME'" for what is not supported: types
    /// other than strings and booleans, encryption, other codecs. Reading throws such errors, too.
    ColumnReader(const DataFile& file, const Leaf& leaf, const RowGroup& group, std::size_t group_index);

    /// A value with its levels: `repetition` 0 begins a row; the value is null if `definition` is less than
    /// the leaf's largest level.
    struct Entry {
        int repetition = 0, definition = 0;
        std::string_view text{};  ///< valid until the next call of peek()
        bool boolean = false;
    };
    /// Returns the next value without consuming it; null after the last one.
    const Entry* peek();
    void advance() { is_read_ = false; }

    const Leaf& leaf() const { return leaf_; }
    const std::string& where() const { return where_; }

  private:
    bool next_page();
    PageHeader read_header();
    std::vector<std::byte> stored_bytes(const PageHeader& header);
    std::vector<std::byte> decompressed(std::vector<std::byte> bytes, std::int64_t size) const;
    void begin_page_v1(const PageHeader& header, std::vector<std::byte> stored);
    void begin_page_v2(const PageHeader& header, std::vector<std::byte> stored);
    RunReader level_reader(PageBytes bytes, int max_level) const;
    void check_levels() const;

    const DataFile& file_;
    Leaf leaf_;
    Chunk chunk_;
    std::string where_;
    std::int64_t position_, end_;  // in the file
    std::int64_t left_;            // values in the chunk that no page so far holds
    std::int64_t left_in_page_ = 0;
    std::vector<std::byte> dictionary_page_, page_, levels_;
    std::vector<std::string_view> dictionary_;
    RunReader repetitions_, definitions_;
    ValueReader values_;
    Entry entry_;
    bool is_read_ = false;  // entry_ is the next value
};

}  // namespace gradtile::parquet
