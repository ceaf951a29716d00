#pragma once
/// The first bytes of a checkpoint file, with which a reader can check the rest. The header and the manifest
/// (see checkpoint_manifest.h) fill HDF5's user block, which HDF5 tools skip. docs/checkpoint_format.md gives
/// the layout.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gradtile {

/// A byte range; `begin` is an offset from the file's first byte.
struct FileExtent {
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
    std::uint64_t end() const { return begin + bytes; }
    bool operator==(const FileExtent&) const = default;
};

struct CheckpointHeader {
    static constexpr std::uint64_t kSize = 128;
    /// The versions of a file that holds its tensors, and of a main file, whose parts hold them.
    static constexpr std::uint32_t kWhole = 2, kInParts = 3;

    std::uint32_t version = kWhole;
    std::int64_t step = 0;
    std::uint64_t length = 0;          ///< bytes in the whole file
    std::uint64_t user_block = 0;      ///< offset at which the HDF5 part, the body, begins
    std::uint64_t manifest_bytes = 0;  ///< the manifest's size; the manifest follows the header
    std::uint32_t manifest_crc = 0;    ///< CRC-32C over bytes [kSize, user_block)
    std::uint32_t body_crc = 0;        ///< CRC-32C over bytes [user_block, length)

    FileExtent body() const { return {user_block, length - user_block}; }

    using Bytes = std::array<std::byte, kSize>;
    Bytes encode() const;
    /// Throws Error (without the file's name) when the bytes are not a header of these versions, are
    /// damaged, or state sizes that contradict each other.
    static CheckpointHeader decode(const Bytes& bytes);

    bool operator==(const CheckpointHeader&) const = default;

    /// Returns the user block's size for a manifest. HDF5 accepts powers of two from 512 on.
    static std::uint64_t user_block_for(std::uint64_t manifest_bytes);
};

}  // namespace gradtile
