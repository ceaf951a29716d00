#pragma once
/// The first bytes of a checkpoint file: what it takes to judge the rest. Header and manifest (see
/// checkpoint_manifest.h) fill HDF5's user block, which HDF5 tools skip. Layout in
/// docs/checkpoint_format.md.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gradtile {

struct CheckpointHeader {
    static constexpr std::uint64_t kSize = 128;
    static constexpr std::uint32_t kVersion = 2;

    std::int64_t step = 0;
    std::uint64_t length = 0;          ///< of the whole file, bytes
    std::uint64_t user_block = 0;      ///< where HDF5's own bytes, the body, begin
    std::uint64_t manifest_bytes = 0;  ///< the manifest begins behind the header
    std::uint32_t manifest_crc = 0;    ///< CRC-32C of bytes [kSize, user_block)
    std::uint32_t body_crc = 0;        ///< CRC-32C of bytes [user_block, length)

    using Bytes = std::array<std::byte, kSize>;
    Bytes encode() const;
    /// Throws Error (without the file's name) when the bytes are not a header of this version, damaged, or
    /// state sizes that contradict each other.
    static CheckpointHeader decode(const Bytes& bytes);

    bool operator==(const CheckpointHeader&) const = default;

    /// The size of the user block for a manifest: HDF5 accepts powers of two from 512 on.
    static std::uint64_t user_block_for(std::uint64_t manifest_bytes);
};

/// True for the first bytes of a checkpoint of format version 1, which only `gradtile convert` reads.
bool is_version_1(const CheckpointHeader::Bytes& bytes);

}  // namespace gradtile
