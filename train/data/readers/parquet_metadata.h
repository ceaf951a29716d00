#pragma once
/// The description at a Parquet file's end, and the headers of its pages (apache/parquet-format, README.md
/// and parquet.thrift).
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gradtile/core/enum_names.h>
#include <gradtile/core/io/data_file.h>

namespace gradtile::parquet {

enum class Type { boolean, int32, int64, int96, float32, float64, byte_array, fixed_byte_array };
enum class Repetition { required, optional, repeated };
enum class Codec { uncompressed, snappy, gzip, lzo, brotli, lz4, zstd, lz4_raw };
enum class Encoding {
    plain,
    group_var_int,  // never used
    plain_dictionary,
    rle,
    bit_packed,
    delta_binary_packed,
    delta_length_byte_array,
    delta_byte_array,
    rle_dictionary,
    byte_stream_split
};
enum class PageType { data, index, dictionary, data_v2 };

}  // namespace gradtile::parquet

template <>
struct gradtile::EnumNames<gradtile::parquet::Type> {
    using T = parquet::Type;
    static constexpr std::array names = {
        std::pair{T::boolean, std::string_view("BOOLEAN")},
        std::pair{T::int32, std::string_view("INT32")},
        std::pair{T::int64, std::string_view("INT64")},
        std::pair{T::int96, std::string_view("INT96")},
        std::pair{T::float32, std::string_view("FLOAT")},
        std::pair{T::float64, std::string_view("DOUBLE")},
        std::pair{T::byte_array, std::string_view("BYTE_ARRAY")},
        std::pair{T::fixed_byte_array, std::string_view("FIXED_LEN_BYTE_ARRAY")}};
};
template <>
struct gradtile::EnumNames<gradtile::parquet::Codec> {
    using T = parquet::Codec;
    static constexpr std::array names = {std::pair{T::uncompressed, std::string_view("UNCOMPRESSED")},
                                         std::pair{T::snappy, std::string_view("SNAPPY")},
                                         std::pair{T::gzip, std::string_view("GZIP")},
                                         std::pair{T::lzo, std::string_view("LZO")},
                                         std::pair{T::brotli, std::string_view("BROTLI")},
                                         std::pair{T::lz4, std::string_view("LZ4")},
                                         std::pair{T::zstd, std::string_view("ZSTD")},
                                         std::pair{T::lz4_raw, std::string_view("LZ4_RAW")}};
};
template <>
struct gradtile::EnumNames<gradtile::parquet::Encoding> {
    using T = parquet::Encoding;
    static constexpr std::array names = {
        std::pair{T::plain, std::string_view("PLAIN")},
        std::pair{T::group_var_int, std::string_view("GROUP_VAR_INT")},
        std::pair{T::plain_dictionary, std::string_view("PLAIN_DICTIONARY")},
        std::pair{T::rle, std::string_view("RLE")},
        std::pair{T::bit_packed, std::string_view("BIT_PACKED")},
        std::pair{T::delta_binary_packed, std::string_view("DELTA_BINARY_PACKED")},
        std::pair{T::delta_length_byte_array, std::string_view("DELTA_LENGTH_BYTE_ARRAY")},
        std::pair{T::delta_byte_array, std::string_view("DELTA_BYTE_ARRAY")},
        std::pair{T::rle_dictionary, std::string_view("RLE_DICTIONARY")},
        std::pair{T::byte_stream_split, std::string_view("BYTE_STREAM_SPLIT")}};
};

namespace gradtile::parquet {

/// A column of values: a leaf of the schema.
struct Leaf {
    std::vector<std::string> path{};  ///< from a top-level column to the leaf
    Type type = Type::byte_array;
    int max_definition = 0;  ///< optional and repeated nodes on the path
    int max_repetition = 0;  ///< repeated nodes on the path
    /// Optional and repeated nodes up to the first repeated node: a list with an element has at least this
    /// definition level.
    int element_definition = 0;
    std::size_t repeated_index = 0;  ///< the first repeated node's index in the path
    std::size_t index = 0;           ///< among all leaves

    const std::string& column() const { return path.front(); }
    /// "messages.list.element.role"
    std::string name() const;
};

/// A leaf's values in a row group.
struct Chunk {
    Type type = Type::byte_array;
    Codec codec = Codec::uncompressed;
    std::int64_t values = 0;  ///< nulls included
    std::int64_t begin = 0, bytes = 0;
    bool is_encrypted = false;
    bool is_in_another_file = false;
};

struct RowGroup {
    std::int64_t rows = 0;
    std::vector<Chunk> chunks{};  ///< one per leaf
};

struct Metadata {
    std::vector<Leaf> leaves{};
    std::vector<std::string> columns{};  ///< the top-level columns' names
    std::vector<RowGroup> row_groups{};
};

/// Returns whether a file begins as Parquet files do.
bool is_parquet(const DataFile& file);

/// Reads and checks a file's description: every chunk lies inside the file. Throws Error that begins with
/// the file's name.
Metadata read_metadata(const DataFile& file);

struct PageHeader {
    PageType type = PageType::data;
    std::int64_t header_bytes = 0;
    std::int64_t compressed = 0, uncompressed = 0;  ///< bytes after the header
    std::optional<std::uint32_t> crc{};
    std::int64_t values = 0;  ///< nulls included
    Encoding encoding = Encoding::plain;
    Encoding definition_encoding = Encoding::rle, repetition_encoding = Encoding::rle;  ///< version 1
    std::int64_t definition_bytes = 0, repetition_bytes = 0;                            ///< version 2
    bool is_compressed = true;                                                          ///< version 2
};

/// Reads the header at the start of `bytes`. Returns nullopt when it has more bytes than these.
std::optional<PageHeader> read_page_header(std::span<const std::byte> bytes, const std::string& where);

}  // namespace gradtile::parquet
