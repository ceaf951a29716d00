#pragma once
/// The storage that libhdf5 writes a new checkpoint to. Large data pieces go directly to the file; libhdf5's
/// own structures and small pieces stay in memory until the end.
///
/// HDF5's core driver is not used, because it holds a second copy of the whole file in memory (1.5 GB for
/// GPT-2 124M with its optimizer). HDF5's default driver is not used for three reasons: tests cannot observe
/// its calls or make them fail; libhdf5 crashes when a write fails while it closes a file; and since it
/// rewrites its structures, the file's checksum would need another pass over the file. This class writes
/// every file byte once, and computes the CRC from the bytes in memory before it passes them to the kernel.
#include <map>
#include <memory>
#include <vector>

#include <gradtile/core/io/durable_file.h>
#include <gradtile/train/checkpoint/internal/hdf5_storage.h>

namespace gradtile {

class CheckpointImage final : public Hdf5Storage {
  public:
    /// Writes into `file`. The caller writes the user block, bytes [0, body_begin).
    CheckpointImage(const OpenFile& file, std::uint64_t body_begin) : file_(file), body_begin_(body_begin) {}

    std::uint64_t size() const override { return size_; }
    void read(std::byte* data, std::size_t bytes, std::uint64_t address) override;
    void write(const std::byte* data, std::size_t bytes, std::uint64_t address, bool is_metadata) override;
    void truncate(std::uint64_t size) override { size_ = size; }

    /// Writes the bytes that are still in memory, after libhdf5 has closed the file. Returns the CRC-32C over
    /// bytes [body_begin, size()) as libhdf5 passed them to write().
    std::uint32_t finish();

  private:
    struct Extent {
        std::uint64_t bytes;
        std::uint32_t crc;
    };
    static constexpr std::uint64_t kPage = std::uint64_t{64} << 10;
    using Page = std::unique_ptr<std::byte[]>;

    void write_in_memory(const std::byte* data, std::size_t bytes, std::uint64_t address);
    void read_from_memory(std::byte* data, std::size_t bytes, std::uint64_t address) const;
    bool overlaps_written(std::uint64_t address, std::uint64_t bytes) const;

    const OpenFile& file_;
    std::uint64_t body_begin_;
    std::uint64_t size_ = 0;
    std::map<std::uint64_t, Extent> written_;  // the extents that are already in the file, by address
    std::map<std::uint64_t, Page> pages_;      // by address / kPage; bytes that were never written are zero
    std::uint64_t writeback_begin_ = 0;        // where the range begins whose writeback was not requested yet
    std::uint64_t writeback_end_ = 0;
};

}  // namespace gradtile
