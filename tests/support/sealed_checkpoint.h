#pragma once
/// Checkpoint files with any HDF5 content under a correct header: what somebody who wants to hurt the reader
/// would make, and what damage looks like when the header's checksum does not catch it.
#include <cstring>
#include <functional>
#include <vector>

#include <gradtile/train/checkpoint_file.h>
#include <gradtile/train/checkpoint_header.h>
#include <gradtile/train/checksum.h>

namespace gradtile::test {

/// libhdf5 ends a file with a dataset of 2^40 bytes there, though nobody wrote one of them: refused.
class MemoryStorage final : public Hdf5Storage {
  public:
    static constexpr std::uint64_t most_bytes = 64 << 20;
    std::vector<std::byte> bytes;

    std::uint64_t size() const override { return bytes.size(); }
    void read(std::byte* data, std::size_t count, std::uint64_t address) override {
        check(address <= bytes.size() && count <= bytes.size() - address, "read beyond the end");
        std::memcpy(data, bytes.data() + address, count);
    }
    void write(const std::byte* data, std::size_t count, std::uint64_t address, bool) override {
        check(address <= most_bytes && count <= most_bytes - address, "too large for a test");
        bytes.resize(std::max<std::size_t>(bytes.size(), address + count));
        std::memcpy(bytes.data() + address, data, count);
    }
    void truncate(std::uint64_t size) override {
        check(size <= most_bytes, "too large for a test");
        bytes.resize(size);
    }
};

/// Puts a header in front that vouches for the rest.
inline std::vector<std::byte> seal(std::vector<std::byte> file, std::int64_t step = 0) {
    file.resize(std::max<std::size_t>(file.size(), CheckpointHeader::kSize + 1));
    CheckpointHeader header;
    header.step = step;
    header.length = file.size();
    header.body_crc = crc32c(std::span(file).subspan(CheckpointHeader::kSize));
    const CheckpointHeader::Bytes bytes = header.encode();
    std::copy(bytes.begin(), bytes.end(), file.begin());
    return file;
}

/// A sound checkpoint's HDF5 part, with room for the header.
inline std::vector<std::byte> hdf5_of(const Checkpoint& checkpoint) {
    const Hdf5Lock lock;
    MemoryStorage storage;
    write_hdf5(storage, checkpoint);
    return std::move(storage.bytes);
}

/// The same after `change` did something to the open file, sealed.
inline std::vector<std::byte> sealed_after(std::vector<std::byte> hdf5, std::int64_t step,
                                           const std::function<void(hid_t file)>& change) {
    const Hdf5Lock lock;
    MemoryStorage storage;
    storage.bytes = std::move(hdf5);
    {
        const Hdf5PropertyList access = storage_access(storage);
        const Hdf5File file(H5Fopen("sealed", H5F_ACC_RDWR, access.get()), "open");
        change(file.get());
    }
    return seal(std::move(storage.bytes), step);
}

inline std::vector<std::byte> sealed_checkpoint(const Checkpoint& checkpoint,
                                                const std::function<void(hid_t file)>& change) {
    return sealed_after(hdf5_of(checkpoint), checkpoint.step, change);
}

}  // namespace gradtile::test
