#include <gradtile/train/data/readers/parquet_column.h>

#include <algorithm>
#include <bit>

#include <gradtile/core/check.h>
#include <gradtile/core/io/checksum.h>
#include <gradtile/train/data/readers/decompressor.h>

namespace gradtile::parquet {
namespace {

/// The longest page in bytes, after decompression.
constexpr std::int64_t max_page_bytes = std::int64_t{1} << 28;

}  // namespace

ColumnReader::ColumnReader(const DataFile& file, const Leaf& leaf, const RowGroup& group,
                           std::size_t group_index)
    : file_(file),
      leaf_(leaf),
      chunk_(group.chunks[leaf.index]),
      where_(concat(file.path(), ": row group ", group_index, ", column '", leaf.name(), "'")),
      position_(chunk_.begin),
      end_(chunk_.begin + chunk_.bytes),
      left_(chunk_.values) {
    check(leaf.max_repetition <= 1, where_, ": lists inside lists; expected one list at most");
    check(leaf.type == Type::byte_array || leaf.type == Type::boolean, where_, ": type ", name_of(leaf.type),
          "; expected strings");
    check(!chunk_.is_encrypted, where_, ": is encrypted; expected no encryption");
    check(!chunk_.is_in_another_file, where_, ": lies in another file; expected all columns in one file");
    switch (chunk_.codec) {
        case Codec::uncompressed:
        case Codec::snappy:
        case Codec::gzip:
        case Codec::zstd:
            return;
        default:
            throw Error(concat(where_, ": codec ", name_of(chunk_.codec),
                               "; expected UNCOMPRESSED, SNAPPY, GZIP or ZSTD"));
    }
}

const ColumnReader::Entry* ColumnReader::peek() {
    if (is_read_) return &entry_;
    while (left_in_page_ == 0)
        if (!next_page()) return nullptr;
    --left_in_page_;
    entry_ = {};
    entry_.repetition = static_cast<int>(repetitions_.next());
    entry_.definition = leaf_.max_definition == 0 ? 0 : static_cast<int>(definitions_.next());
    check_levels();
    if (entry_.definition == leaf_.max_definition) {
        if (leaf_.type == Type::boolean) {
            entry_.boolean = values_.boolean();
        } else {
            entry_.text = values_.text();
        }
    }
    is_read_ = true;
    return &entry_;
}

void ColumnReader::check_levels() const {
    check(entry_.repetition <= leaf_.max_repetition && entry_.definition <= leaf_.max_definition, where_,
          ": damaged: levels ", entry_.repetition, " and ", entry_.definition, "; expected at most ",
          leaf_.max_repetition, " and ", leaf_.max_definition);
}

/// Returns false after the chunk's last page.
bool ColumnReader::next_page() {
    while (left_ > 0) {
        const PageHeader header = read_header();
        std::vector<std::byte> stored = stored_bytes(header);
        switch (header.type) {
            case PageType::index:
                continue;
            case PageType::dictionary:
                check(dictionary_page_.empty(), where_, ": damaged: two dictionaries");
                check(leaf_.type == Type::byte_array && (header.encoding == Encoding::plain ||
                                                         header.encoding == Encoding::plain_dictionary),
                      where_, ": a dictionary of encoding ", name_of(header.encoding),
                      "; expected PLAIN strings");
                dictionary_page_ = decompressed(std::move(stored), header.uncompressed);
                dictionary_ = read_dictionary(PageBytes(dictionary_page_, where_), header.values);
                continue;
            case PageType::data:
                begin_page_v1(header, std::move(stored));
                break;
            case PageType::data_v2:
                begin_page_v2(header, std::move(stored));
                break;
        }
        left_in_page_ = header.values;
        left_ -= header.values;
        return true;
    }
    return false;
}

PageHeader ColumnReader::read_header() {
    // A header usually has some dozen bytes; statistics with long strings may make it longer.
    constexpr std::int64_t usual = 4096, most = 1 << 24;
    std::optional<PageHeader> header;
    std::vector<std::byte> bytes;
    for (std::int64_t size = usual; !header; size *= 16) {
        const std::int64_t available = std::min(size, end_ - position_);
        check(std::ssize(bytes) < available && size <= most, where_, ": damaged: its pages hold ",
              chunk_.values - left_, " values; expected ", chunk_.values);
        bytes.resize(static_cast<std::size_t>(available));
        file_.read(position_, bytes);
        header = read_page_header(bytes, where_);
    }
    position_ += header->header_bytes;
    check(header->compressed >= 0 && header->compressed <= end_ - position_, where_, ": damaged: a page of ",
          header->compressed, " bytes; ", end_ - position_, " are left");
    check(header->uncompressed >= 0 && header->uncompressed <= max_page_bytes, where_, ": a page of ",
          header->uncompressed, " bytes; expected at most ", max_page_bytes);
    const bool is_data = header->type == PageType::data || header->type == PageType::data_v2;
    check(!is_data || (header->values >= 0 && header->values <= std::min(left_, max_page_values)), where_,
          ": a page of ", header->values, " values; expected at most ", std::min(left_, max_page_values));
    return *header;
}

std::vector<std::byte> ColumnReader::stored_bytes(const PageHeader& header) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(header.compressed));
    file_.read(position_, bytes);
    check(!header.crc || *header.crc == crc32(bytes), where_, ": damaged: the page at byte ", position_,
          " does not have its CRC");
    position_ += header.compressed;
    return bytes;
}

std::vector<std::byte> ColumnReader::decompressed(std::vector<std::byte> bytes, std::int64_t size) const {
    if (chunk_.codec == Codec::uncompressed) {
        check(std::ssize(bytes) == size, where_, ": damaged: a page of ", bytes.size(), " bytes; expected ",
              size);
        return bytes;
    }
    std::vector<std::byte> out(static_cast<std::size_t>(size));
    if (chunk_.codec == Codec::snappy) {
        decompress_snappy(bytes, out, where_);
    } else {
        const auto decompressor =
            chunk_.codec == Codec::gzip ? gzip_decompressor(where_) : zstd_decompressor(where_);
        decompress_block(*decompressor, bytes, out, where_);
    }
    return out;
}

RunReader ColumnReader::level_reader(PageBytes bytes, int max_level) const {
    return {std::move(bytes), static_cast<int>(std::bit_width(static_cast<unsigned>(max_level)))};
}

/// Version 1: levels and values are compressed together; the levels' sizes precede them.
void ColumnReader::begin_page_v1(const PageHeader& header, std::vector<std::byte> stored) {
    page_ = decompressed(std::move(stored), header.uncompressed);
    PageBytes bytes(page_, where_);
    const auto levels = [&](int max_level, Encoding encoding) {
        if (max_level == 0) return RunReader();
        check(encoding == Encoding::rle, where_, ": levels of encoding ", name_of(encoding),
              "; expected RLE");
        const std::uint32_t size = bytes.uint32();
        return level_reader(PageBytes(bytes.take(size), where_), max_level);
    };
    repetitions_ = levels(leaf_.max_repetition, header.repetition_encoding);
    definitions_ = levels(leaf_.max_definition, header.definition_encoding);
    values_ = ValueReader(std::move(bytes), leaf_.type, header.encoding, header.values, dictionary_);
}

/// Version 2: only the values are compressed; the header has the levels' sizes.
void ColumnReader::begin_page_v2(const PageHeader& header, std::vector<std::byte> stored) {
    const std::int64_t repetition = header.repetition_bytes, definition = header.definition_bytes;
    check(repetition >= 0 && definition >= 0 && repetition + definition <= std::ssize(stored) &&
              repetition + definition <= header.uncompressed,
          where_, ": damaged: levels of ", repetition, " and ", definition, " bytes in a page of ",
          stored.size());
    const auto values_begin = stored.begin() + repetition + definition;
    levels_.assign(stored.begin(), values_begin);
    std::vector<std::byte> values(values_begin, stored.end());
    const std::int64_t size = header.uncompressed - repetition - definition;
    page_ = header.is_compressed && size > 0 ? decompressed(std::move(values), size) : std::move(values);
    PageBytes levels(levels_, where_);
    repetitions_ = level_reader(PageBytes(levels.take(static_cast<std::uint64_t>(repetition)), where_),
                                leaf_.max_repetition);
    definitions_ = level_reader(PageBytes(levels.take(static_cast<std::uint64_t>(definition)), where_),
                                leaf_.max_definition);
    values_ = ValueReader(PageBytes(page_, where_), leaf_.type, header.encoding, header.values, dictionary_);
}

}  // namespace gradtile::parquet
