#pragma once
/// The first bytes of a checkpoint file (HDF5's user block): enough to judge the whole file before libhdf5
/// sees it. Layout in docs/checkpoint_format.md.
#include <array>
#include <cstddef>
#include <cstdint>

#include <gradtile/train/file_system.h>

namespace gradtile {

struct CheckpointHeader {
    /// Size of the user block; HDF5's own bytes begin here. A page, so that data can be aligned to pages.
    static constexpr std::uint64_t kSize = 4096;
    static constexpr std::uint32_t kVersion = 1;

    std::int64_t step = 0;
    std::uint64_t length = 0;    ///< of the whole file, bytes
    std::uint32_t body_crc = 0;  ///< CRC-32C of bytes [kSize, length)

    using Bytes = std::array<std::byte, kSize>;
    Bytes encode() const;
    /// Throws Error (without the file's name) when the bytes are not a header of this version, or damaged.
    static CheckpointHeader decode(const Bytes& bytes);
};

/// CRC-32C of bytes [begin, end) as they lie in the file, read by a few threads.
std::uint32_t file_crc(const OpenFile& file, std::uint64_t begin, std::uint64_t end);

/// Reads the header, then every byte of the file against it. Throws Error (without the file's name) unless
/// the file is exactly what was once written.
CheckpointHeader check_file_bytes(const OpenFile& file);

}  // namespace gradtile
