#pragma once
/// Checksums: for checkpoint files CRC-32C over tensors and whole files, and the Fletcher-32 that HDF5 stores
/// with each chunk; for Parquet pages CRC-32.
#include <cstddef>
#include <cstdint>
#include <span>

namespace gradtile {

/// Returns the CRC-32C (Castagnoli, reflected polynomial 0x82f63b78, RFC 3720 appendix B.4) for a message
/// that ends with `bytes` and whose beginning has the CRC `previous`: crc32c(b, crc32c(a)) is the CRC of a
/// followed by b.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t previous = 0);

/// Returns the CRC for two messages in a row, from each message's CRC and the second one's length in bytes.
std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_length);

/// Fletcher-32 over big-endian 16-bit words with end-around carry, as HDF5's fletcher32 filter stores it. An
/// odd last byte is a word's high half.
std::uint32_t fletcher32(std::span<const std::byte> bytes);

/// CRC-32 (reflected polynomial 0xedb88320, RFC 1952 section 8), as gzip and Parquet store it.
std::uint32_t crc32(std::span<const std::byte> bytes);

namespace detail {
/// CRC-32C from a table, for machines without a CRC instruction. A test compares it with crc32c().
std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t previous);
}  // namespace detail

}  // namespace gradtile
