#pragma once
/// Lets libhdf5 read and write through us (a virtual file driver) instead of through its own file calls.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>

#include <gradtile/core/io/checksum.h>
#include <gradtile/train/checkpoint/internal/hdf5_library.h>

namespace gradtile {

/// Where libhdf5's bytes come from and go to. Addresses count from the file's first byte, the user block
/// included. The functions may throw: the driver keeps the first exception for rethrow_failure().
class Hdf5Storage {
  public:
    virtual ~Hdf5Storage() = default;
    virtual std::uint64_t size() const = 0;
    virtual void read(std::byte* data, std::size_t bytes, std::uint64_t address) = 0;
    /// `is_metadata`: libhdf5's own structures, as opposed to the elements of datasets.
    virtual void write(const std::byte* data, std::size_t bytes, std::uint64_t address, bool is_metadata) = 0;
    virtual void truncate(std::uint64_t size) = 0;

    /// The CRC-32C of bytes that libhdf5 is about to hand to write() just as they lie there.
    void announce(std::span<const std::byte> bytes, std::uint32_t crc) { announced_ = {bytes, crc, {}}; }
    /// Returns the address at which libhdf5 wrote the announced bytes; empty if it has not written them.
    std::optional<std::uint64_t> announced_address() const { return announced_.address; }
    /// The driver calls this before write().
    void note_address(std::span<const std::byte> bytes, std::uint64_t address) {
        if (is_announced(bytes)) announced_.address = address;
    }

    /// After a failed write the driver tells libhdf5 that all is well and drops what follows: libhdf5 1.10
    /// does not survive a write that fails while it closes a file. So a writer must call this before it
    /// believes anything.
    void rethrow_failure() const {
        if (failure_) std::rethrow_exception(failure_);
    }
    bool failed() const { return failure_ != nullptr; }
    void keep_failure(std::exception_ptr failure) {
        if (!failure_) failure_ = std::move(failure);
    }

  protected:
    /// The announced one where these are those bytes.
    std::uint32_t crc_of(std::span<const std::byte> bytes) const {
        return is_announced(bytes) ? announced_.crc : crc32c(bytes);
    }

  private:
    struct Announced {
        std::span<const std::byte> bytes;
        std::uint32_t crc = 0;
        std::optional<std::uint64_t> address;
    };
    bool is_announced(std::span<const std::byte> bytes) const {
        return bytes.data() == announced_.bytes.data() && bytes.size() == announced_.bytes.size();
    }
    Announced announced_;
    std::exception_ptr failure_;
};

/// A file access property list whose files live in `storage` (which must outlive them), in the format of
/// HDF5 1.10, closing whatever is still open with the file.
Hdf5PropertyList storage_access(Hdf5Storage& storage);

}  // namespace gradtile
