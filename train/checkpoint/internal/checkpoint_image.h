#pragma once
/// Where libhdf5 writes a new checkpoint: large pieces of data go straight to the file, libhdf5's own
/// structures and small pieces wait in memory until the end.
///
/// Why not HDF5's core driver: it holds the whole file (1.5 GB for GPT-2 124M with its optimizer) once more
/// in memory. Why not its ordinary one: its calls cannot be seen or failed by tests, a failing write while it
/// closes brings libhdf5 down, and since it rewrites its structures the file's checksum would cost another
/// pass. Here every byte of the file is written once, and its CRC is taken from memory, before the kernel had
/// it.
#include <map>
#include <memory>
#include <vector>

#include <gradtile/core/io/durable_file.h>
#include <gradtile/train/checkpoint/internal/hdf5_storage.h>

namespace gradtile {

class CheckpointImage final : public Hdf5Storage {
  public:
    /// Writes into `file`, leaving the user block, bytes [0, body_begin), to the caller.
    CheckpointImage(const OpenFile& file, std::uint64_t body_begin) : file_(file), body_begin_(body_begin) {}

    std::uint64_t size() const override { return size_; }
    void read(std::byte* data, std::size_t bytes, std::uint64_t address) override;
    void write(const std::byte* data, std::size_t bytes, std::uint64_t address, bool is_metadata) override;
    void truncate(std::uint64_t size) override { size_ = size; }

    /// Writes what waited in memory, after libhdf5 has closed the file. Returns the CRC-32C of bytes
    /// [body_begin, size()) as they were handed over.
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
    std::map<std::uint64_t, Extent> written_;  // by address; already in the file
    std::map<std::uint64_t, Page> waiting_;    // by address / kPage; never-written bytes are zero
    std::uint64_t writeback_begin_ = 0;        // written, but the kernel not yet asked to begin with it
    std::uint64_t writeback_end_ = 0;
};

}  // namespace gradtile
