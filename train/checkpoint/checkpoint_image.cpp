#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/core/io/checksum.h>
#include <gradtile/train/checkpoint/internal/checkpoint_image.h>

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

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

void CheckpointImage::write(std::span<const std::byte> bytes, std::uint64_t address, bool is_metadata) {
    const bool is_expected = bytes.data() == expected_.bytes.data() && bytes.size() == expected_.bytes.size();
    if (is_expected) expected_.address = address;
    check(address >= body_begin_, "libhdf5 wrote into the user block, at ", address);
    check(!overlaps_written(address, bytes.size()), "libhdf5 wrote twice to byte ", address);
    size_ = std::max(size_, address + bytes.size());
    if (is_metadata || bytes.size() < kDirect) {
        write_in_memory(bytes.data(), bytes.size(), address);
        return;
    }
    file_.write(bytes.data(), bytes.size(), address);
    written_[address] = {bytes.size(), is_expected ? expected_.crc : crc32c(bytes)};

    if (address != writeback_end_) writeback_begin_ = address;
    writeback_end_ = address + bytes.size();
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

/// A virtual file driver: libhdf5 reads and writes the image instead of a file of its own.
struct CheckpointImage::Driver {
    // The data that the property list passes to open().
    struct Info {
        CheckpointImage* image;
    };
    // libhdf5 uses only the first member.
    struct File {
        H5FD_t common;
        CheckpointImage* image;
        haddr_t end_of_addresses;
    };
    static File& file_of(H5FD_t* file) { return *reinterpret_cast<File*>(file); }
    static const File& file_of(const H5FD_t* file) { return *reinterpret_cast<const File*>(file); }

    /// Exceptions must not pass through C code.
    template <class Call>
    static bool succeeds(CheckpointImage& image, Call&& call) noexcept {
        try {
            call();
            return true;
        } catch (...) {
            if (!image.failure_) image.failure_ = std::current_exception();
            return false;
        }
    }

    static H5FD_t* open(const char*, unsigned, hid_t access, haddr_t) {
        const auto* info = static_cast<const Info*>(H5Pget_driver_info(access));
        if (info == nullptr) return nullptr;
        auto* file = new (std::nothrow) File{};
        if (file != nullptr) file->image = info->image;
        return reinterpret_cast<H5FD_t*>(file);
    }
    static herr_t close(H5FD_t* file) {
        delete &file_of(file);
        return 0;
    }
    static herr_t query(const H5FD_t*, unsigned long* flags) {
        *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_IGNORE_DRVRINFO;
        return 0;
    }
    static haddr_t get_eoa(const H5FD_t* file, H5FD_mem_t) { return file_of(file).end_of_addresses; }
    static herr_t set_eoa(H5FD_t* file, H5FD_mem_t, haddr_t address) {
        file_of(file).end_of_addresses = address;
        return 0;
    }
    static haddr_t get_eof(const H5FD_t* file, H5FD_mem_t) { return file_of(file).image->size_; }
    static herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t bytes, void* data) {
        CheckpointImage& image = *file_of(file).image;
        return succeeds(image, [&] { image.read(static_cast<std::byte*>(data), bytes, address); }) ? 0 : -1;
    }
    static herr_t write(H5FD_t* file, H5FD_mem_t type, hid_t, haddr_t address, size_t bytes,
                        const void* data) {
        CheckpointImage& image = *file_of(file).image;
        const std::span from(static_cast<const std::byte*>(data), bytes);
        if (!image.failure_) succeeds(image, [&] { image.write(from, address, type != H5FD_MEM_DRAW); });
        return 0;
    }
    static herr_t truncate(H5FD_t* file, hid_t, hbool_t) {
        CheckpointImage& image = *file_of(file).image;
        if (!image.failure_) image.size_ = file_of(file).end_of_addresses;
        return 0;
    }

    static hid_t register_driver() {
        // libhdf5 copies the struct. Its members are set one by one, because other versions of libhdf5 have
        // other members.
        H5FD_class_t driver{};
#if H5_VERSION_GE(1, 13, 0)
        driver.version = H5FD_CLASS_VERSION;
        driver.value = static_cast<H5FD_class_value_t>(3401);  // outside the range that The HDF Group assigns
#endif
        driver.name = "gradtile_storage";
        driver.maxaddr = static_cast<haddr_t>(INT64_MAX);
        driver.fc_degree = H5F_CLOSE_STRONG;
        driver.fapl_size = sizeof(Info);
        driver.open = open;
        driver.close = close;
        driver.query = query;
        driver.get_eoa = get_eoa;
        driver.set_eoa = set_eoa;
        driver.get_eof = get_eof;
        driver.read = read;
        driver.write = write;
        driver.truncate = truncate;
        const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
        std::copy(std::begin(map), std::end(map), driver.fl_map);
        return hdf5_check(H5FDregister(&driver), "register the storage driver");
    }
};

Hdf5PropertyList CheckpointImage::access() {
    static const hid_t driver = Driver::register_driver();
    Hdf5PropertyList access(H5Pcreate(H5P_FILE_ACCESS), "create a property list");
    const Driver::Info info{this};
    hdf5_check(H5Pset_driver(access.get(), driver, &info), "choose the storage driver");
    hdf5_check(H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG), "set the close degree");
    hdf5_check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110),
               "set the format version");
    return access;
}

}  // namespace gradtile
