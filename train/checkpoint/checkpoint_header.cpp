#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include <gradtile/core/check.h>
#include <gradtile/core/io/checksum.h>
#include <gradtile/core/io/little_endian.h>
#include <gradtile/train/checkpoint/checkpoint_header.h>

namespace gradtile {

namespace {

// The file's first line. `head -1` prints it, and a transfer that converts line ends damages it visibly.
constexpr std::string_view kMagic = "gradtile checkpoint\r\n\x1a\n";

// Offsets of the little-endian fields; every other header byte is zero.
constexpr std::size_t kVersionAt = 32;
constexpr std::size_t kBodyCrcAt = 36;
constexpr std::size_t kStepAt = 40;
constexpr std::size_t kLengthAt = 48;
constexpr std::size_t kHeaderCrcAt = 56;
constexpr std::size_t kManifestCrcAt = 60;
constexpr std::size_t kUserBlockAt = 64;
constexpr std::size_t kManifestBytesAt = 72;
static_assert(kMagic.size() <= kVersionAt);

constexpr std::string_view last_commit_with_version_1 = "155d59d8";

constexpr std::uint64_t kSmallestUserBlock = 512;
// A manifest of this size lists 30 TB of tensors.
constexpr std::uint64_t kLargestUserBlock = std::uint64_t{1} << 30;

bool has_magic(const CheckpointHeader::Bytes& bytes) {
    return std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

// Returns the CRC over the whole header, with this field set to zero.
std::uint32_t header_crc(CheckpointHeader::Bytes bytes) {
    put_little_endian(bytes.data() + kHeaderCrcAt, std::uint32_t{0});
    return crc32c(bytes);
}

}  // namespace

std::uint64_t CheckpointHeader::user_block_for(std::uint64_t manifest_bytes) {
    const std::uint64_t needed = kSize + manifest_bytes;
    check(needed <= kLargestUserBlock, "the list of tensors takes ", manifest_bytes, " bytes, at most ",
          kLargestUserBlock - kSize, " are supported");
    return std::max(kSmallestUserBlock, std::bit_ceil(needed));
}

CheckpointHeader::Bytes CheckpointHeader::encode() const {
    Bytes bytes{};
    std::byte* const to = bytes.data();
    std::memcpy(to, kMagic.data(), kMagic.size());
    put_little_endian(to + kVersionAt, version);
    put_little_endian(to + kBodyCrcAt, body_crc);
    put_little_endian(to + kStepAt, step);
    put_little_endian(to + kLengthAt, length);
    put_little_endian(to + kManifestCrcAt, manifest_crc);
    put_little_endian(to + kUserBlockAt, user_block);
    put_little_endian(to + kManifestBytesAt, manifest_bytes);
    put_little_endian(to + kHeaderCrcAt, header_crc(bytes));
    return bytes;
}

CheckpointHeader CheckpointHeader::decode(const Bytes& bytes) {
    const std::byte* const from = bytes.data();
    check(has_magic(bytes), "not a gradtile checkpoint");
    const auto version = get_little_endian<std::uint32_t>(from + kVersionAt);
    check(version != 1,
          "format version 1, of an earlier program, which this one does not read; `gradtile "
          "convert` of commit ",
          last_commit_with_version_1, " converts it");
    check(get_little_endian<std::uint32_t>(from + kHeaderCrcAt) == header_crc(bytes),
          "damaged: the header's checksum does not match");
    check(version == kWhole || version == kInParts, "format version ", version,
          "; this program reads versions ", kWhole, " and ", kInParts);
    CheckpointHeader header;
    header.version = version;
    header.step = get_little_endian<std::int64_t>(from + kStepAt);
    header.length = get_little_endian<std::uint64_t>(from + kLengthAt);
    header.body_crc = get_little_endian<std::uint32_t>(from + kBodyCrcAt);
    header.manifest_crc = get_little_endian<std::uint32_t>(from + kManifestCrcAt);
    header.user_block = get_little_endian<std::uint64_t>(from + kUserBlockAt);
    header.manifest_bytes = get_little_endian<std::uint64_t>(from + kManifestBytesAt);
    check(header.step >= 0, "damaged: step ", header.step);
    check(std::has_single_bit(header.user_block) && header.user_block >= kSmallestUserBlock &&
              header.user_block <= kLargestUserBlock,
          "damaged: a user block of ", header.user_block, " bytes");
    check(header.manifest_bytes <= header.user_block - kSize && header.user_block < header.length,
          "damaged: a manifest of ", header.manifest_bytes, " bytes in a user block of ", header.user_block,
          " in a file of ", header.length);
    return header;
}

}  // namespace gradtile
