#pragma once
/// A file of data, opened once and read at any place: token files larger than memory cost only what is read.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <gradtile/core/descriptor.h>

namespace gradtile {

/// Reads with pread, not through a memory map: reading a mapped file that somebody has cut short ends the
/// process with SIGBUS, reading this one throws. Reading is safe from several threads. The file stays open,
/// so one of the same name that replaces it is not read.
class DataFile {
  public:
    /// Throws Error naming the file when it is missing, not a regular file (a directory, a pipe, a device, a
    /// socket), or unreadable. Never waits.
    explicit DataFile(const std::string& path);

    const std::string& path() const { return path_; }
    /// Bytes, when it was opened.
    std::int64_t size() const { return size_; }

    /// Fills out with the bytes from `offset` on, which lie within size(). Throws Error "FILE: ends at byte
    /// N; expected M (it was changed while it was read)" when it became shorter, and on a read error.
    void read(std::int64_t offset, std::span<std::byte> out) const;

    /// Whether the file has another length or time of last change than when it was opened. One system call.
    bool was_touched() const;
    /// Throws Error when the length is another one.
    void require_same_size() const;

  private:
    std::string path_;
    Descriptor file_;
    std::int64_t size_ = 0;
    std::int64_t changed_ = 0;  // nanoseconds, time of last change
};

/// Raises the limit on open files, where the system allows it, so that this many and some hundred more can be
/// open: each shard of a data set stays open, and the usual limit is 1024.
void make_room_for_open_files(std::size_t count);

}  // namespace gradtile
