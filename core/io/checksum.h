#pragma once
/// Checksums of checkpoint files: CRC32C over tensors and whole files, Fletcher-32 as HDF5 keeps it per
/// chunk.
#include <cstddef>
#include <cstdint>
#include <span>

namespace gradtile {

/// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78, RFC 3720 appendix B.4) of bytes that follow a
/// message whose CRC is `previous`; crc32c(b, crc32c(a)) is the CRC of a and b in a row.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t previous = 0);

/// The CRC of two messages in a row from the CRC of each and the length of the second.
std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_length);

/// Fletcher-32 over big-endian 16-bit words with end-around carry, exactly as HDF5's fletcher32 filter stores
/// it (a last odd byte counts as the high half of a word).
std::uint32_t fletcher32(std::span<const std::byte> bytes);

namespace detail {
/// Table-driven CRC-32C: what machines without a CRC instruction use; tests hold both against each other.
std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t previous);
}  // namespace detail

}  // namespace gradtile
