#pragma once
/// Writes small Parquet files for tests: one required column of strings, PLAIN, uncompressed, one page.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradtile::test {

/// A struct in Thrift's compact protocol. Fields are added in the order of their ids.
class ThriftStruct {
  public:
    ThriftStruct& integer(int id, std::int64_t value, bool is_64_bit = false) {
        head(id, is_64_bit ? 6 : 5);
        zigzag(value);
        return *this;
    }
    ThriftStruct& binary(int id, std::string_view value) {
        head(id, 8);
        bytes_ += bytes_of(value);
        return *this;
    }
    ThriftStruct& structure(int id, const ThriftStruct& value) {
        head(id, 12);
        bytes_ += value.finished();
        return *this;
    }
    /// A list of elements of the type, each as its bytes.
    ThriftStruct& list(int id, int type, const std::vector<std::string>& elements) {
        head(id, 9);
        bytes_ += static_cast<char>(static_cast<int>(elements.size()) << 4 | type);
        for (const std::string& element : elements) bytes_ += element;
        return *this;
    }
    ThriftStruct& structures(int id, const std::vector<ThriftStruct>& values) {
        std::vector<std::string> elements;
        for (const ThriftStruct& value : values) elements.push_back(value.finished());
        return list(id, 12, elements);
    }
    std::string finished() const { return bytes_ + '\0'; }

    static std::string bytes_of(std::string_view value) { return varint(value.size()) + std::string(value); }

  private:
    void head(int id, int type) {
        bytes_ += static_cast<char>((id - last_id_) << 4 | type);
        last_id_ = id;
    }
    void zigzag(std::int64_t value) {
        bytes_ += varint(static_cast<std::uint64_t>(value << 1) ^ static_cast<std::uint64_t>(value >> 63));
    }
    static std::string varint(std::uint64_t value) {
        std::string bytes;
        for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
        return bytes + static_cast<char>(value);
    }

    std::string bytes_;
    int last_id_ = 0;
};

inline std::string little_endian(std::size_t value) {
    std::string bytes;
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> 8 * i);
    return bytes;
}

/// Returns a file with a text in each row.
inline std::string parquet_file(const std::string& column, const std::vector<std::string>& texts) {
    constexpr int byte_array = 6, plain = 0, rle = 3, required = 0, utf8 = 0, uncompressed = 0;
    const auto rows = static_cast<std::int64_t>(texts.size());
    std::string values;
    for (const std::string& text : texts) values += little_endian(text.size()) + text;
    const auto size = static_cast<std::int64_t>(values.size());
    const std::string page =
        ThriftStruct()
            .integer(1, 0)  // a data page
            .integer(2, size)
            .integer(3, size)
            .structure(5, ThriftStruct().integer(1, rows).integer(2, plain).integer(3, rle).integer(4, rle))
            .finished() +
        values;
    const auto bytes = static_cast<std::int64_t>(page.size());
    const ThriftStruct root = ThriftStruct().binary(4, "schema").integer(5, 1);
    const ThriftStruct leaf =
        ThriftStruct().integer(1, byte_array).integer(3, required).binary(4, column).integer(6, utf8);
    const ThriftStruct chunk = ThriftStruct()
                                   .integer(1, byte_array)
                                   .list(2, 5, {std::string(1, '\0')})
                                   .list(3, 8, {ThriftStruct::bytes_of(column)})
                                   .integer(4, uncompressed)
                                   .integer(5, rows, true)
                                   .integer(6, bytes, true)
                                   .integer(7, bytes, true)
                                   .integer(9, 4, true);
    const ThriftStruct group = ThriftStruct()
                                   .structures(1, {ThriftStruct().integer(2, 4, true).structure(3, chunk)})
                                   .integer(2, bytes, true)
                                   .integer(3, rows, true);
    const std::string description = ThriftStruct()
                                        .integer(1, 1)
                                        .structures(2, {root, leaf})
                                        .integer(3, rows, true)
                                        .structures(4, {group})
                                        .finished();
    return "PAR1" + page + description + little_endian(description.size()) + "PAR1";
}

}  // namespace gradtile::test
