#include <gradtile/train/data/readers/thrift.h>

#include <utility>

#include <gradtile/core/io/little_endian.h>

namespace gradtile {

std::span<const std::byte> ThriftReader::take(std::uint64_t count) {
    if (count > bytes_.size() - position_)
        throw ThriftEnd(concat(source_, ": damaged: its description ends too early"));
    const std::span<const std::byte> taken = bytes_.subspan(position_, static_cast<std::size_t>(count));
    position_ += taken.size();
    return taken;
}

std::uint64_t ThriftReader::varint() {
    return read_varint([&] { return byte(); }, source_);
}

std::int64_t ThriftReader::zigzag() {
    return from_zigzag(varint());
}

ThriftReader::Type ThriftReader::type_of(unsigned code) const {
    check(code >= 1 && code <= static_cast<unsigned>(Type::structure), source_, ": damaged: Thrift type ",
          code);
    return static_cast<Type>(code);
}

void ThriftReader::require(Type type, Type expected) const {
    check(type == expected, source_, ": damaged: Thrift type ", static_cast<int>(type), "; expected ",
          static_cast<int>(expected));
}

std::int64_t ThriftReader::integer(Type type) {
    if (type == Type::byte) return static_cast<std::int8_t>(byte());
    check(type == Type::i16 || type == Type::i32 || type == Type::i64, source_, ": damaged: Thrift type ",
          static_cast<int>(type), "; expected an integer");
    return zigzag();
}

std::int32_t ThriftReader::integer32(Type type) {
    const std::int64_t value = integer(type);
    check(std::in_range<std::int32_t>(value), source_, ": damaged: ", value, " is no 32-bit integer");
    return static_cast<std::int32_t>(value);
}

bool ThriftReader::boolean(Type type) {
    if (type != Type::boolean_true) require(type, Type::boolean_false);
    return type == Type::boolean_true;
}

std::string_view ThriftReader::binary(Type type) {
    require(type, Type::binary);
    const std::span<const std::byte> bytes = take(varint());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

ThriftReader::ListHead ThriftReader::list_head() {
    const unsigned head = byte();
    const std::uint64_t count = head >> 4 < 15 ? head >> 4 : varint();
    // Each element has at least one byte.
    if (count > bytes_.size() - position_)
        throw ThriftEnd(concat(source_, ": damaged: a list of ", count, " elements ends too early"));
    return {count == 0 ? Type::byte : type_of(head & 15), count};
}

/// A boolean in a list has a byte; as a field it is part of the field's type.
void ThriftReader::skip_element(Type type) {
    if (type == Type::boolean_true || type == Type::boolean_false) {
        take(1);
    } else {
        skip(type);
    }
}

void ThriftReader::skip(Type type) {
    const Nested nested(*this);
    switch (type) {
        case Type::boolean_true:
        case Type::boolean_false:
            return;
        case Type::byte:
            take(1);
            return;
        case Type::i16:
        case Type::i32:
        case Type::i64:
            varint();
            return;
        case Type::real:
            take(8);
            return;
        case Type::binary:
            take(varint());
            return;
        case Type::list:
        case Type::set: {
            const ListHead head = list_head();
            for (std::uint64_t i = 0; i < head.count; ++i) skip_element(head.elements);
            return;
        }
        case Type::map: {
            const std::uint64_t count = varint();
            if (count == 0) return;
            const unsigned types = byte();
            for (std::uint64_t i = 0; i < count; ++i) {
                skip_element(type_of(types >> 4));
                skip_element(type_of(types & 15));
            }
            return;
        }
        case Type::structure:
            read_struct([](std::int64_t, Type) { return false; });
            return;
    }
}

}  // namespace gradtile
