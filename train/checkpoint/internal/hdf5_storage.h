#pragma once
/// A virtual file driver: libhdf5 reads and writes through an Hdf5Storage instead of through its own file
/// calls.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>

#include <gradtile/core/io/checksum.h>
#include <gradtile/train/checkpoint/internal/hdf5_library.h>

namespace gradtile {

/// The storage behind libhdf5. Addresses are offsets from the file's first byte, including the user block.
/// The functions may throw: the driver keeps the first exception for rethrow_failure().
class Hdf5Storage {
  public:
    virtual ~Hdf5Storage() = default;
    virtual std::uint64_t size() const = 0;
    virtual void read(std::byte* data, std::size_t bytes, std::uint64_t address) = 0;
    /// `is_metadata` is true for libhdf5's own structures and false for dataset elements.
    virtual void write(const std::byte* data, std::size_t bytes, std::uint64_t address, bool is_metadata) = 0;
    virtual void truncate(std::uint64_t size) = 0;

    /// Tells the storage which bytes, by their address in memory, libhdf5 will pass to write() next, and
    /// their CRC-32C.
    void expect_write(std::span<const std::byte> bytes, std::uint32_t crc) { expected_ = {bytes, crc, {}}; }
    /// Returns the address at which libhdf5 wrote the expected bytes; empty if it has not written them.
    std::optional<std::uint64_t> address_of_expected() const { return expected_.address; }
    /// The driver calls this before write().
    void note_address(std::span<const std::byte> bytes, std::uint64_t address) {
        if (is_expected(bytes)) expected_.address = address;
    }

    /// Throws the first exception from a write. libhdf5 1.10 crashes if a write fails while it closes a file,
    /// so after a failed write the driver reports success to libhdf5 and drops later writes. A writer must
    /// call this function before it relies on the file.
    void rethrow_failure() const {
        if (failure_) std::rethrow_exception(failure_);
    }
    bool failed() const { return failure_ != nullptr; }
    void keep_failure(std::exception_ptr failure) {
        if (!failure_) failure_ = std::move(failure);
    }

  protected:
    /// Returns the CRC-32C over these bytes: the given one if expect_write() was called for them; otherwise
    /// computes it.
    std::uint32_t crc_of(std::span<const std::byte> bytes) const {
        return is_expected(bytes) ? expected_.crc : crc32c(bytes);
    }

  private:
    struct ExpectedWrite {
        std::span<const std::byte> bytes;
        std::uint32_t crc = 0;
        std::optional<std::uint64_t> address;
    };
    bool is_expected(std::span<const std::byte> bytes) const {
        return bytes.data() == expected_.bytes.data() && bytes.size() == expected_.bytes.size();
    }
    ExpectedWrite expected_;
    std::exception_ptr failure_;
};

/// Returns a file access property list for files in `storage`, which must outlive them. The file format is
/// HDF5 1.10's; closing a file closes its open objects.
Hdf5PropertyList storage_access(Hdf5Storage& storage);

}  // namespace gradtile
