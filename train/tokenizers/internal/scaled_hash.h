#pragma once
/// Slot positions in a hash table of any size. If sizes were powers of two, a table would take up to twice
/// the memory.
#include <cstddef>
#include <cstdint>

namespace gradtile {

/// Maps a hash of 64 uniform bits to [0, size): the high half of hash * size.
inline std::size_t scaled_hash(std::uint64_t hash, std::size_t size) {
    __extension__ using Product = unsigned __int128;
    return static_cast<std::size_t>(Product{hash} * size >> 64);
}

}  // namespace gradtile
