#pragma once
/// Integers as little-endian bytes.
#include <concepts>
#include <cstddef>
#include <cstdint>

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

}  // namespace gradtile
