#include <gradtile/train/data/readers/parquet_values.h>

#include <algorithm>

#include <gradtile/core/check.h>
#include <gradtile/core/io/little_endian.h>
#include <gradtile/core/text/json_reader.h>

namespace gradtile::parquet {
namespace {

std::string_view text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Returns `width` bits from a position on; the lowest bit comes first.
std::uint64_t bits_at(std::span<const std::byte> bytes, std::size_t position, int width) {
    std::uint64_t value = 0;
    for (int done = 0; done < width;) {
        const std::size_t place = position + static_cast<std::size_t>(done);
        const int offset = static_cast<int>(place % 8), count = std::min(8 - offset, width - done);
        const std::uint64_t part =
            std::to_integer<std::uint64_t>(bytes[place / 8]) >> offset & ((1u << count) - 1);
        value |= part << done;
        done += count;
    }
    return value;
}

/// Reads integers in the encoding delta_binary_packed: blocks of differences.
std::vector<std::int64_t> read_deltas(PageBytes& bytes, std::int64_t max_count) {
    constexpr std::uint64_t max_block = 1 << 16;
    const std::string& where = bytes.where();
    const std::uint64_t block = bytes.varint(), parts = bytes.varint();
    const std::uint64_t count = bytes.varint();
    const std::uint64_t part_size = parts == 0 ? 0 : block / parts;
    check(
        block <= max_block && parts >= 1 && part_size % 8 == 0 && part_size > 0 && part_size * parts == block,
        where, ": damaged: blocks of ", block, " integers in ", parts, " parts");
    check(count <= static_cast<std::uint64_t>(max_count), where, ": damaged: ", count,
          " lengths; the page has ", max_count, " values");
    std::vector<std::int64_t> values;
    auto value = static_cast<std::uint64_t>(bytes.zigzag());  // unsigned, because sums may wrap around
    if (count > 0) values.push_back(static_cast<std::int64_t>(value));
    while (values.size() < count) {
        const auto min_delta = static_cast<std::uint64_t>(bytes.zigzag());
        const std::span<const std::byte> widths = bytes.take(parts);
        for (std::size_t part = 0; part < parts && values.size() < count; ++part) {
            const int width = std::to_integer<int>(widths[part]);
            check(width <= 64, where, ": damaged: integers of ", width, " bits");
            const auto packed = bytes.take(part_size / 8 * static_cast<std::uint64_t>(width));
            for (std::size_t i = 0; i < part_size && values.size() < count; ++i) {
                value += min_delta + bits_at(packed, i * static_cast<std::size_t>(width), width);
                values.push_back(static_cast<std::int64_t>(value));
            }
        }
    }
    return values;
}

std::vector<std::int64_t> read_lengths(PageBytes& bytes, std::int64_t max_count) {
    std::vector<std::int64_t> lengths = read_deltas(bytes, max_count);
    for (const std::int64_t length : lengths)
        check(length >= 0 && length <= static_cast<std::int64_t>(max_json_string_bytes), bytes.where(),
              ": a string of ", length, " bytes; expected 0 to ", max_json_string_bytes);
    return lengths;
}

}  // namespace

std::span<const std::byte> PageBytes::take(std::uint64_t count) {
    check(count <= rest_.size(), where_, ": damaged: a page ends too early");
    const std::span<const std::byte> taken = rest_.first(static_cast<std::size_t>(count));
    rest_ = rest_.subspan(taken.size());
    return taken;
}

std::uint32_t PageBytes::uint32() {
    return get_little_endian<std::uint32_t>(take(4).data());
}

std::uint64_t PageBytes::varint() {
    return read_varint([&] { return std::to_integer<unsigned>(take(1)[0]); }, where_);
}

std::int64_t PageBytes::zigzag() {
    return from_zigzag(varint());
}

RunReader::RunReader(PageBytes bytes, int bit_width) : bytes_(std::move(bytes)), bit_width_(bit_width) {
    check(bit_width >= 0 && bit_width <= 32, bytes_.where(), ": damaged: integers of ", bit_width, " bits");
}

void RunReader::begin_run() {
    const std::uint64_t head = bytes_.varint();
    const std::uint64_t count = head >> 1;
    // A page has fewer values, so the numbers below do not overflow.
    check(count >= 1 && count <= max_page_values, bytes_.where(), ": damaged: a run of ", count, " values");
    if (head % 2 == 1) {
        left_ = count * 8;
        packed_ = bytes_.take(count * static_cast<std::uint64_t>(bit_width_));
        bit_ = 0;
        return;
    }
    left_ = count;
    packed_ = {};
    const auto value = bytes_.take(static_cast<std::uint64_t>(bit_width_ + 7) / 8);
    value_ = static_cast<std::uint32_t>(bits_at(value, 0, static_cast<int>(value.size() * 8)));
}

std::uint32_t RunReader::next() {
    if (bit_width_ == 0) return 0;
    if (left_ == 0) begin_run();
    --left_;
    if (packed_.empty()) return value_;
    const auto value = static_cast<std::uint32_t>(bits_at(packed_, bit_, bit_width_));
    bit_ += static_cast<std::size_t>(bit_width_);
    return value;
}

ValueReader::ValueReader(PageBytes bytes, Type type, Encoding encoding, std::int64_t values,
                         const std::vector<std::string_view>& dictionary)
    : bytes_(std::move(bytes)), encoding_(encoding), dictionary_(&dictionary) {
    const std::string where = bytes_.where();
    if (type == Type::boolean) {
        check(encoding == Encoding::plain || encoding == Encoding::rle, where, ": encoding ",
              name_of(encoding), "; expected PLAIN or RLE for booleans");
        if (encoding == Encoding::rle) {
            const std::uint32_t size = bytes_.uint32();
            bits_ = RunReader(PageBytes(bytes_.take(size), where), 1);
            return;
        }
        return;
    }
    switch (encoding) {
        case Encoding::plain:
            return;
        case Encoding::plain_dictionary:
        case Encoding::rle_dictionary: {
            // A page that holds only nulls may have no bytes.
            if (bytes_.size() == 0) return;
            const int bit_width = std::to_integer<int>(bytes_.take(1)[0]);
            bits_ = RunReader(PageBytes(bytes_.take(bytes_.size()), where), bit_width);
            return;
        }
        case Encoding::delta_length_byte_array:
            lengths_ = read_lengths(bytes_, values);
            return;
        case Encoding::delta_byte_array:
            prefixes_ = read_lengths(bytes_, values);
            lengths_ = read_lengths(bytes_, values);
            check(prefixes_.size() == lengths_.size(), where, ": damaged: ", prefixes_.size(),
                  " prefixes of ", lengths_.size(), " strings");
            return;
        default:
            throw Error(
                concat(where, ": encoding ", name_of(encoding),
                       "; expected PLAIN, a dictionary, DELTA_LENGTH_BYTE_ARRAY or DELTA_BYTE_ARRAY for "
                       "strings"));
    }
}

bool ValueReader::boolean() {
    if (encoding_ == Encoding::rle) return bits_.next() != 0;
    if (bit_ % 8 == 0) eight_ = std::to_integer<unsigned>(bytes_.take(1)[0]);
    return (eight_ >> (bit_++ % 8) & 1) != 0;
}

std::string_view ValueReader::text() {
    switch (encoding_) {
        case Encoding::plain:
            return text_of(bytes_.take(bytes_.uint32()));
        case Encoding::plain_dictionary:
        case Encoding::rle_dictionary: {
            const std::uint32_t index = bits_.next();
            check(index < dictionary_->size(), bytes_.where(), ": damaged: dictionary entry ", index, " of ",
                  dictionary_->size());
            return (*dictionary_)[index];
        }
        default: {
            check(next_ < lengths_.size(), bytes_.where(), ": damaged: more values than its ",
                  lengths_.size(), " lengths");
            const std::size_t i = next_++;
            const std::string_view stored = text_of(bytes_.take(static_cast<std::uint64_t>(lengths_[i])));
            if (encoding_ == Encoding::delta_length_byte_array) return stored;
            const auto prefix = static_cast<std::size_t>(prefixes_[i]);
            check(prefix <= previous_.size() && prefix + stored.size() <= max_json_string_bytes,
                  bytes_.where(), ": damaged: a prefix of ", prefix, " bytes after a string of ",
                  previous_.size());
            previous_.resize(prefix);
            return previous_ += stored;
        }
    }
}

std::vector<std::string_view> read_dictionary(PageBytes bytes, std::int64_t values) {
    check(values >= 0 && values <= static_cast<std::int64_t>(bytes.size() / 4), bytes.where(),
          ": damaged: a dictionary of ", values, " strings in ", bytes.size(), " bytes");
    std::vector<std::string_view> dictionary;
    for (std::int64_t i = 0; i < values; ++i) dictionary.push_back(text_of(bytes.take(bytes.uint32())));
    return dictionary;
}

}  // namespace gradtile::parquet
