#pragma once
/// Integers as little-endian bytes, of fixed and of variable length.
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <gradtile/core/check.h>

namespace gradtile {

template <std::integral T>
void put_little_endian(std::byte* to, T value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
        to[i] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i));
}

template <std::integral T>
T get_little_endian(const std::byte* from) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<std::uint64_t>(from[i]) << (8 * i);
    return static_cast<T>(value);
}

/// Reads an unsigned LEB128 integer (a varint of protocol buffers, Thrift and Snappy): 7 bits a byte, and a
/// high bit in all bytes but the last. next_byte() returns one byte after another, as unsigned numbers.
/// Throws Error, which begins with `source`, when the integer has more than 64 bits.
template <class NextByte>
std::uint64_t read_varint(NextByte&& next_byte, std::string_view source) {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        const std::uint64_t byte = next_byte(), bits = byte & 127;
        check(bits << shift >> shift == bits, source, ": damaged: an integer of more than 64 bits");
        value |= bits << shift;
        if (byte < 128) return value;
    }
    throw Error(concat(source, ": damaged: an integer of more than 64 bits"));
}

/// Returns the signed integer that Thrift and Parquet write as this varint: 0, -1, 1, -2 as 0, 1, 2, 3.
constexpr std::int64_t from_zigzag(std::uint64_t value) {
    return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

}  // namespace gradtile
