#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/train/checkpoint_header.h>
#include <gradtile/train/checksum.h>

namespace gradtile {

namespace {

// Readable with `head -1`, and broken by a transfer that translates line ends.
constexpr std::string_view kMagic = "gradtile checkpoint\r\n\x1a\n";

// Offsets of the little-endian fields; every other byte of the block is zero.
constexpr std::size_t kVersionAt = 32;
constexpr std::size_t kBodyCrcAt = 36;
constexpr std::size_t kStepAt = 40;
constexpr std::size_t kLengthAt = 48;
constexpr std::size_t kHeaderCrcAt = 56;
static_assert(kMagic.size() <= kVersionAt);

template <class T>
void put(CheckpointHeader::Bytes& bytes, std::size_t at, T value) {
    for (std::size_t i = 0; i < sizeof value; ++i) {
        bytes[at + i] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i));
    }
}

template <class T>
T get(const CheckpointHeader::Bytes& bytes, std::size_t at) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<std::uint64_t>(bytes[at + i]) << (8 * i);
    return static_cast<T>(value);
}

// Of the whole block with the field itself zero.
std::uint32_t header_crc(CheckpointHeader::Bytes bytes) {
    put(bytes, kHeaderCrcAt, std::uint32_t{0});
    return crc32c(bytes);
}

std::uint32_t range_crc(const OpenFile& file, std::uint64_t begin, std::uint64_t end) {
    // Small enough to stay in the cache between being read and being summed.
    constexpr std::size_t kPiece = std::size_t{256} << 10;
    const auto piece = std::make_unique_for_overwrite<std::byte[]>(kPiece);
    std::uint32_t crc = 0;
    while (begin < end) {
        const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, end - begin));
        file.read(piece.get(), bytes, begin);
        crc = crc32c({piece.get(), bytes}, crc);
        begin += bytes;
    }
    return crc;
}

}  // namespace

CheckpointHeader::Bytes CheckpointHeader::encode() const {
    Bytes bytes{};
    std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
    put(bytes, kVersionAt, kVersion);
    put(bytes, kBodyCrcAt, body_crc);
    put(bytes, kStepAt, step);
    put(bytes, kLengthAt, length);
    put(bytes, kHeaderCrcAt, header_crc(bytes));
    return bytes;
}

CheckpointHeader CheckpointHeader::decode(const Bytes& bytes) {
    check(std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0, "not a gradtile checkpoint");
    check(get<std::uint32_t>(bytes, kHeaderCrcAt) == header_crc(bytes),
          "damaged: the header's checksum does not match");
    const auto version = get<std::uint32_t>(bytes, kVersionAt);
    check(version == kVersion, "format version ", version, "; this program reads version ", kVersion);
    CheckpointHeader header;
    header.step = get<std::int64_t>(bytes, kStepAt);
    header.length = get<std::uint64_t>(bytes, kLengthAt);
    header.body_crc = get<std::uint32_t>(bytes, kBodyCrcAt);
    check(header.step >= 0, "damaged: step ", header.step);
    return header;
}

std::uint32_t file_crc(const OpenFile& file, std::uint64_t begin, std::uint64_t end) {
    // One thread does not keep up with the page cache; more than these gain little.
    constexpr std::uint64_t kMostThreads = 4;
    constexpr std::uint64_t kWorthAThread = std::uint64_t{16} << 20;
    const std::uint64_t threads = std::clamp<std::uint64_t>(
        (end - begin) / kWorthAThread, 1,
        std::min<std::uint64_t>(kMostThreads, std::max(1u, std::thread::hardware_concurrency())));
    const std::uint64_t part = (end - begin) / threads;
    std::vector<std::future<std::uint32_t>> rest;
    for (std::uint64_t i = 1; i < threads; ++i) {
        const std::uint64_t from = begin + i * part;
        const std::uint64_t to = i + 1 == threads ? end : from + part;
        rest.push_back(
            std::async(std::launch::async, [&file, from, to] { return range_crc(file, from, to); }));
    }
    std::uint32_t crc = range_crc(file, begin, threads == 1 ? end : begin + part);
    for (std::uint64_t i = 1; i < threads; ++i) {
        const std::uint64_t bytes = i + 1 == threads ? end - (begin + i * part) : part;
        crc = crc32c_combine(crc, rest[static_cast<std::size_t>(i - 1)].get(), bytes);
    }
    return crc;
}

CheckpointHeader check_file_bytes(const OpenFile& file) {
    const std::uint64_t size = file.size();
    check(size > CheckpointHeader::kSize, "truncated: ", size, " bytes are less than a header and a body");
    CheckpointHeader::Bytes bytes;
    file.read(bytes.data(), bytes.size(), 0);
    const CheckpointHeader header = CheckpointHeader::decode(bytes);
    check(header.length == size, "truncated or extended: ", size, " bytes, the header says ", header.length);
    const std::uint32_t crc = file_crc(file, CheckpointHeader::kSize, size);
    check(crc == header.body_crc, "damaged: the checksum of the file's content does not match the header's");
    return header;
}

}  // namespace gradtile
