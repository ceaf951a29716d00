#include <algorithm>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/core/io/checksum.h>
#include <gradtile/train/checkpoint/checkpoint_reader.h>

namespace gradtile {

namespace {

// Consecutive body bytes that go to one destination, or to none.
struct Segment {
    FileExtent extent;
    std::byte* to = nullptr;
    std::uint32_t crc = 0;
};

// For each object: the positions of its extents' segments in the segment list.
using SegmentIndex = std::vector<std::vector<std::size_t>>;

// Returns the body in file order: all objects' extents, and between them the bytes that only HDF5 readers
// use.
std::vector<Segment> segments_of(const CheckpointContents& contents, std::span<std::byte* const> destinations,
                                 SegmentIndex& index) {
    struct Place {
        FileExtent extent;
        std::byte* to;
        std::size_t object, number;
    };
    std::vector<Place> places;
    const std::vector<StoredObject>& objects = contents.manifest.objects;
    for (std::size_t i = 0; i < objects.size(); ++i) {
        std::byte* to = destinations[i];
        for (std::size_t n = 0; n < objects[i].extents.size(); ++n) {
            const FileExtent& extent = objects[i].extents[n];
            places.push_back({extent, to, i, n});
            if (to != nullptr) to += extent.bytes;
        }
        index.emplace_back(objects[i].extents.size());
    }
    std::sort(places.begin(), places.end(),
              [](const Place& a, const Place& b) { return a.extent.begin < b.extent.begin; });

    std::vector<Segment> segments;
    segments.reserve(2 * places.size() + 1);
    std::uint64_t position = contents.header.user_block;
    const auto add_gap = [&](std::uint64_t end) {
        if (position < end) segments.push_back({{position, end - position}});
    };
    for (const Place& place : places) {
        add_gap(place.extent.begin);
        index[place.object][place.number] = segments.size();
        segments.push_back({place.extent, place.to});
        position = place.extent.end();
    }
    add_gap(contents.header.length);
    return segments;
}

void read_segments(const OpenFile& file, std::span<Segment> segments) {
    // How many bytes one read takes: few enough that the bytes stay in the cache until the checksum is
    // computed.
    constexpr std::uint64_t kPiece = std::uint64_t{256} << 10;
    const auto scratch = std::make_unique_for_overwrite<std::byte[]>(kPiece);
    for (Segment& segment : segments) {
        for (std::uint64_t done = 0; done < segment.extent.bytes;) {
            const auto bytes = static_cast<std::size_t>(std::min(kPiece, segment.extent.bytes - done));
            std::byte* const to = segment.to != nullptr ? segment.to + done : scratch.get();
            file.read(to, bytes, segment.extent.begin + done);
            segment.crc = crc32c({to, bytes}, segment.crc);
            done += bytes;
        }
    }
}

// Divides the segments into consecutive groups of about equal size in bytes, one per thread.
std::vector<std::span<Segment>> shares_of(std::span<Segment> segments, std::uint64_t bytes) {
    // The maximum number of threads. One thread is slower than the page cache; more threads than this are
    // hardly faster.
    constexpr std::uint64_t kMaxThreads = 4;
    constexpr std::uint64_t kMinBytesPerThread = std::uint64_t{16} << 20;
    const std::uint64_t threads = std::clamp<std::uint64_t>(
        bytes / kMinBytesPerThread, 1,
        std::min<std::uint64_t>(kMaxThreads, std::max(1u, std::thread::hardware_concurrency())));
    std::vector<std::span<Segment>> shares;
    std::size_t begin = 0;
    std::uint64_t share_bytes = 0;
    for (std::size_t i = 0; i < segments.size(); ++i) {
        share_bytes += segments[i].extent.bytes;
        if (share_bytes < bytes / threads && i + 1 < segments.size()) continue;
        shares.push_back(segments.subspan(begin, i + 1 - begin));
        begin = i + 1;
        share_bytes = 0;
    }
    return shares;
}

void read_by_threads(const OpenFile& file, std::span<Segment> segments, std::uint64_t bytes) {
    const std::vector<std::span<Segment>> shares = shares_of(segments, bytes);
    std::vector<std::future<void>> rest;
    for (std::size_t i = 1; i < shares.size(); ++i) {
        rest.push_back(
            std::async(std::launch::async, [&file, share = shares[i]] { read_segments(file, share); }));
    }
    if (!shares.empty()) read_segments(file, shares[0]);
    for (std::future<void>& share : rest) share.get();
}

}  // namespace

CheckpointHeader read_header(const OpenFile& file) {
    const std::uint64_t size = file.size();
    check(size > CheckpointHeader::kSize, "truncated: ", size, " bytes are less than a header and a body");
    CheckpointHeader::Bytes bytes;
    file.read(bytes.data(), bytes.size(), 0);
    return CheckpointHeader::decode(bytes);
}

CheckpointContents read_contents(const OpenFile& file) {
    CheckpointContents contents;
    contents.header = read_header(file);
    const CheckpointHeader& header = contents.header;
    const std::uint64_t size = file.size();
    check(header.length == size, "truncated or extended: ", size, " bytes, the header says ", header.length);
    std::vector<std::byte> block(static_cast<std::size_t>(header.user_block - CheckpointHeader::kSize));
    file.read(block.data(), block.size(), CheckpointHeader::kSize);
    check(crc32c(block) == header.manifest_crc,
          "damaged: the checksum of the list of tensors does not match");
    const auto manifest = std::span(block).first(static_cast<std::size_t>(header.manifest_bytes));
    check(std::all_of(block.begin() + static_cast<std::ptrdiff_t>(manifest.size()), block.end(),
                      [](std::byte byte) { return byte == std::byte{0}; }),
          "damaged: the user block holds more than the list of tensors");
    contents.manifest = CheckpointManifest::decode(manifest, header);
    return contents;
}

void read_body(const OpenFile& file, const CheckpointContents& contents,
               std::span<std::byte* const> destinations) {
    const std::vector<StoredObject>& objects = contents.manifest.objects;
    check(destinations.size() == objects.size(), destinations.size(), " destinations for ", objects.size(),
          " objects");
    SegmentIndex index;
    std::vector<Segment> segments = segments_of(contents, destinations, index);
    read_by_threads(file, segments, contents.header.body().bytes);

    std::uint32_t body_crc = 0;
    for (const Segment& segment : segments)
        body_crc = crc32c_combine(body_crc, segment.crc, segment.extent.bytes);
    check(body_crc == contents.header.body_crc,
          "damaged: the checksum of the file's content does not match the header's");
    for (std::size_t i = 0; i < objects.size(); ++i) {
        if (contents.manifest.is_in_parts(objects[i])) continue;
        std::uint32_t crc = 0;
        for (const std::size_t segment : index[i])
            crc = crc32c_combine(crc, segments[segment].crc, segments[segment].extent.bytes);
        check(crc == objects[i].crc32c, objects[i].name,
              ": damaged: the checksum of its elements does not match");
    }
}

}  // namespace gradtile
