#pragma once
/// The encodings of values and levels in Parquet pages (apache/parquet-format, Encodings.md).
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/train/data/readers/parquet_metadata.h>

namespace gradtile::parquet {

/// The most values, nulls included, in a page.
constexpr std::int64_t max_page_values = std::int64_t{1} << 24;

/// Reads a page's bytes in order. Throws Error that begins with `where` when there are too few.
class PageBytes {
  public:
    PageBytes() = default;
    PageBytes(std::span<const std::byte> bytes, std::string where) : rest_(bytes), where_(std::move(where)) {}
    const std::string& where() const { return where_; }
    std::size_t size() const { return rest_.size(); }
    std::span<const std::byte> take(std::uint64_t count);
    std::uint32_t uint32();
    std::uint64_t varint();
    std::int64_t zigzag();

  private:
    std::span<const std::byte> rest_;
    std::string where_;
};

/// Reads integers of up to 32 bits: runs of equal integers, and runs of packed ones.
class RunReader {
  public:
    RunReader() = default;
    RunReader(PageBytes bytes, int bit_width);
    std::uint32_t next();

  private:
    void begin_run();

    PageBytes bytes_;
    int bit_width_ = 0;
    std::uint64_t left_ = 0;             // integers in the run
    std::span<const std::byte> packed_;  // empty in a run of equal integers
    std::size_t bit_ = 0;                // position in packed_
    std::uint32_t value_ = 0;
};

/// Reads the strings or booleans of a data page.
class ValueReader {
  public:
    ValueReader() = default;
    /// `values`: the page's values, nulls included. Throws Error for encodings that the type does not have.
    ValueReader(PageBytes bytes, Type type, Encoding encoding, std::int64_t values,
                const std::vector<std::string_view>& dictionary);
    /// Returns the next string, which is valid until the next call and as long as the page.
    std::string_view text();
    bool boolean();

  private:
    PageBytes bytes_;
    Encoding encoding_ = Encoding::plain;
    const std::vector<std::string_view>* dictionary_ = nullptr;
    RunReader bits_;                      // dictionary indices, or booleans
    unsigned eight_ = 0;                  // plain: the current byte of booleans
    unsigned bit_ = 0;                    // plain: how many booleans were read
    std::vector<std::int64_t> prefixes_;  // delta_byte_array: bytes in common with the previous string
    std::vector<std::int64_t> lengths_;   // bytes that are stored
    std::size_t next_ = 0;                // index in lengths_
    std::string previous_;                // delta_byte_array
};

/// Returns the strings of a dictionary page.
std::vector<std::string_view> read_dictionary(PageBytes bytes, std::int64_t values);

}  // namespace gradtile::parquet
