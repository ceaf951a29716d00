#pragma once
/// The storage that libhdf5 writes a new checkpoint to. Large data pieces go directly to the file; libhdf5's
/// own structures and small pieces stay in memory until the end.
///
/// HDF5's core driver is not used, because it holds a second copy of the whole file in memory (1.5 GB for
/// GPT-2 124M with its optimizer). HDF5's default driver is not used for three reasons: tests cannot observe
/// its calls or make them fail; libhdf5 crashes when a write fails while it closes a file; and since it
/// rewrites its structures, the file's checksum would need another pass over the file. This class writes
/// every file byte once, and computes the CRC from the bytes in memory before it passes them to the kernel.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include <gradtile/core/io/file_system.h>
#include <gradtile/train/checkpoint/internal/hdf5_library.h>

namespace gradtile {

/// Addresses are offsets from the file's first byte, including the user block.
class CheckpointImage {
  public:
    /// Writes into `file`. The caller writes the user block, bytes [0, body_begin).
    CheckpointImage(const OpenFile& file, std::uint64_t body_begin) : file_(file), body_begin_(body_begin) {}
    CheckpointImage(const CheckpointImage&) = delete;
    CheckpointImage& operator=(const CheckpointImage&) = delete;

    /// Returns a file access property list with which libhdf5 writes here; the image must outlive it. The
    /// file format is HDF5 1.10's; closing a file closes its open objects.
    Hdf5PropertyList access();
    /// Tells the image which bytes, by their address in memory, libhdf5 will write next, and their CRC-32C.
    void expect_write(std::span<const std::byte> bytes, std::uint32_t crc) { expected_ = {bytes, crc, {}}; }
    /// Returns the address at which libhdf5 wrote the expected bytes; empty if it has not written them.
    std::optional<std::uint64_t> address_of_expected() const { return expected_.address; }
    /// Throws the first exception from a read or a write. libhdf5 1.10 crashes if a write fails while it
    /// closes a file, so after a failed write libhdf5 is told of success, and later writes are dropped. A
    /// writer must call this function before it relies on the file.
    void rethrow_failure() const {
        if (failure_) std::rethrow_exception(failure_);
    }
    std::uint64_t size() const { return size_; }
    /// Writes the bytes that are still in memory, after libhdf5 has closed the file. Returns the CRC-32C over
    /// bytes [body_begin, size()) as libhdf5 wrote them.
    std::uint32_t finish();

  private:
    struct Driver;  // what libhdf5 calls
    struct ExpectedWrite {
        std::span<const std::byte> bytes;
        std::uint32_t crc = 0;
        std::optional<std::uint64_t> address;
    };
    struct Extent {
        std::uint64_t bytes;
        std::uint32_t crc;
    };
    static constexpr std::uint64_t kPage = std::uint64_t{64} << 10;
    using Page = std::unique_ptr<std::byte[]>;

    void read(std::byte* data, std::size_t bytes, std::uint64_t address);
    /// `is_metadata` is true for libhdf5's own structures and false for dataset elements.
    void write(std::span<const std::byte> bytes, std::uint64_t address, bool is_metadata);
    void write_in_memory(const std::byte* data, std::size_t bytes, std::uint64_t address);
    void read_from_memory(std::byte* data, std::size_t bytes, std::uint64_t address) const;
    bool overlaps_written(std::uint64_t address, std::uint64_t bytes) const;

    const OpenFile& file_;
    ExpectedWrite expected_;
    std::exception_ptr failure_;
    std::uint64_t body_begin_;
    std::uint64_t size_ = 0;
    std::map<std::uint64_t, Extent> written_;  // the extents that are already in the file, by address
    std::map<std::uint64_t, Page> pages_;      // by address / kPage; bytes that were never written are zero
    std::uint64_t writeback_begin_ = 0;        // where the range begins whose writeback was not requested yet
    std::uint64_t writeback_end_ = 0;
};

}  // namespace gradtile
