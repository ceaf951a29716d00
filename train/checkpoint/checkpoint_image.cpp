#include <algorithm>
#include <cstring>

#include <gradtile/core/check.h>
#include <gradtile/core/io/checksum.h>
#include <gradtile/train/checkpoint/internal/checkpoint_image.h>

namespace gradtile {

namespace {
// The size in bytes from which a piece is written directly. Smaller pieces are collected in memory, because a
// copy is cheaper than a system call for each.
constexpr std::size_t kDirect = std::size_t{64} << 10;
// The kernel is asked to write each finished range of this size to the disk while later ranges are still
// being computed.
constexpr std::uint64_t kWriteback = std::uint64_t{32} << 20;
}  // namespace

bool CheckpointImage::overlaps_written(std::uint64_t address, std::uint64_t bytes) const {
    const auto after = written_.lower_bound(address + bytes);
    if (after == written_.begin()) return false;
    const auto& [begin, extent] = *std::prev(after);
    return begin + extent.bytes > address;
}

void CheckpointImage::write(const std::byte* data, std::size_t bytes, std::uint64_t address,
                            bool is_metadata) {
    check(address >= body_begin_, "libhdf5 wrote into the user block, at ", address);
    check(!overlaps_written(address, bytes), "libhdf5 wrote twice to byte ", address);
    size_ = std::max(size_, address + bytes);
    if (is_metadata || bytes < kDirect) {
        write_in_memory(data, bytes, address);
        return;
    }
    file_.write(data, bytes, address);
    written_[address] = {bytes, crc_of({data, bytes})};

    if (address != writeback_end_) writeback_begin_ = address;
    writeback_end_ = address + bytes;
    if (writeback_end_ - writeback_begin_ >= kWriteback) {
        // The call is only a hint; if it fails, fsync reports the failure.
        file_.file_system().start_writeback(file_.descriptor(), writeback_begin_,
                                            writeback_end_ - writeback_begin_);
        writeback_begin_ = writeback_end_;
    }
}

void CheckpointImage::read(std::byte* data, std::size_t bytes, std::uint64_t address) {
    check(!overlaps_written(address, bytes), "libhdf5 read back data it wrote, at byte ", address);
    read_from_memory(data, bytes, address);
}

void CheckpointImage::write_in_memory(const std::byte* data, std::size_t bytes, std::uint64_t address) {
    while (bytes > 0) {
        Page& page = pages_[address / kPage];
        if (!page) page = std::make_unique<std::byte[]>(kPage);
        const std::uint64_t offset = address % kPage;
        const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, kPage - offset));
        std::memcpy(page.get() + offset, data, part);
        data += part;
        address += part;
        bytes -= part;
    }
}

void CheckpointImage::read_from_memory(std::byte* data, std::size_t bytes, std::uint64_t address) const {
    while (bytes > 0) {
        const std::uint64_t offset = address % kPage;
        const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, kPage - offset));
        const auto page = pages_.find(address / kPage);
        if (page == pages_.end()) {
            std::memset(data, 0, part);
        } else {
            std::memcpy(data, page->second.get() + offset, part);
        }
        data += part;
        address += part;
        bytes -= part;
    }
}

std::uint32_t CheckpointImage::finish() {
    std::uint32_t crc = 0;
    std::uint64_t position = body_begin_;
    std::vector<std::byte> gap;
    const auto fill_gap = [&](std::uint64_t end) {
        while (position < end) {
            gap.resize(
                static_cast<std::size_t>(std::min<std::uint64_t>(end - position, std::uint64_t{1} << 20)));
            read_from_memory(gap.data(), gap.size(), position);
            file_.write(gap.data(), gap.size(), position);
            crc = crc32c(gap, crc);
            position += gap.size();
        }
    };
    for (const auto& [address, extent] : written_) {
        fill_gap(address);
        crc = crc32c_combine(crc, extent.crc, extent.bytes);
        position = address + extent.bytes;
    }
    fill_gap(size_);
    check(position == size_, "libhdf5 ended the file at byte ", size_, ", inside data it wrote");
    return crc;
}

}  // namespace gradtile
