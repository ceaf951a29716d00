#pragma once
/// Checkpoint files of format version 1: one written by an old release, and malicious modifications of it.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <gradtile/core/io/checksum.h>
#include <gradtile/core/io/little_endian.h>
#include <gradtile/train/checkpoint/internal/hdf5_checkpoint_reader.h>

namespace gradtile::test {

/// HDF5 storage in memory with a size limit: libhdf5 would extend a file with a dataset of 2^40 unwritten
/// bytes to that size.
class MemoryStorage final : public Hdf5Storage {
  public:
    static constexpr std::uint64_t max_bytes = 64 << 20;
    std::vector<std::byte> bytes;

    std::uint64_t size() const override { return bytes.size(); }
    void read(std::byte* data, std::size_t count, std::uint64_t address) override {
        check(address <= bytes.size() && count <= bytes.size() - address, "read beyond the end");
        std::memcpy(data, bytes.data() + address, count);
    }
    void write(const std::byte* data, std::size_t count, std::uint64_t address, bool) override {
        check(address <= max_bytes && count <= max_bytes - address, "too large for a test");
        bytes.resize(std::max<std::size_t>(bytes.size(), address + count));
        std::memcpy(bytes.data() + address, data, count);
    }
    void truncate(std::uint64_t size) override {
        check(size <= max_bytes, "too large for a test");
        bytes.resize(size);
    }
};

/// A checkpoint of step 7: params/sound [20, 30] float32, params/half [3, 5] bfloat16 with master and moment.
inline std::vector<std::byte> version_1_file() {
    std::ifstream in(std::filesystem::path(GRADTILE_SOURCE_DIR) / "tests/train/checkpoint/version_1.h5",
                     std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}

/// Replaces the header by one with valid checksums of the rest.
inline std::vector<std::byte> seal_version_1(std::vector<std::byte> file) {
    constexpr std::size_t kBlock = Hdf5CheckpointReader::user_block;
    const std::vector<std::byte> sound = version_1_file();
    file.resize(std::max(file.size(), kBlock + 1));
    std::copy_n(sound.begin(), kBlock, file.begin());
    put_little_endian(file.data() + 36, crc32c(std::span(file).subspan(kBlock)));
    put_little_endian(file.data() + 48, std::uint64_t{file.size()});
    put_little_endian(file.data() + 56, std::uint32_t{0});
    put_little_endian(file.data() + 56, crc32c(std::span(file).first(kBlock)));
    return file;
}

/// version_1_file() after `change` has modified it as an open HDF5 file, with valid checksums.
inline std::vector<std::byte> changed_version_1(const std::function<void(hid_t file)>& change) {
    const Hdf5Lock lock;
    MemoryStorage storage;
    storage.bytes = version_1_file();
    {
        const Hdf5PropertyList access = storage_access(storage);
        const Hdf5File file(H5Fopen("sealed", H5F_ACC_RDWR, access.get()), "open");
        change(file.get());
    }
    return seal_version_1(std::move(storage.bytes));
}

/// A file with valid checksums on which libhdf5 1.10.8 crashes with a division by zero: the chunks of its
/// first dataset have no elements. The second call of put_little_endian() corrects HDF5's checksum (lookup3)
/// of the changed object header.
inline std::vector<std::byte> version_1_file_that_crashes_libhdf5() {
    std::vector<std::byte> file = version_1_file();
    put_little_endian(file.data() + 4477, std::uint8_t{0});
    put_little_endian(file.data() + 4670, std::uint32_t{0x27355528});
    return seal_version_1(std::move(file));
}

}  // namespace gradtile::test
