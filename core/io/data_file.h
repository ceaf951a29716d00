#pragma once
/// A data file that is opened once and read at any offset, so token files may be larger than memory.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <gradtile/core/descriptor.h>

namespace gradtile {

/// Reads with pread and not through a memory map: reading a mapped file that was truncated ends the process
/// with SIGBUS, while this class throws. Several threads may read at once. The file stays open, so a new file
/// with the same name is not read.
class DataFile {
  public:
    /// Throws Error naming the file when it is missing, unreadable, or not a regular file (a directory, a
    /// pipe, a device, a socket). Never blocks.
    explicit DataFile(const std::string& path);

    const std::string& path() const { return path_; }
    /// The size in bytes when the file was opened.
    std::int64_t size() const { return size_; }
    /// The modification time when the file was opened, in nanoseconds since 1970.
    std::int64_t modified() const { return changed_; }

    /// Fills `out` with the bytes from `offset` on; the range is within size(). Throws Error "FILE: ends at
    /// byte N; expected M (it was changed while it was read)" when the file became shorter, and on a read
    /// error.
    void read(std::int64_t offset, std::span<std::byte> out) const;

    /// Returns whether the file's length or modification time differs from when it was opened. Makes one
    /// system call.
    bool was_modified() const;
    /// Throws Error when the file's length has changed.
    void require_same_size() const;

  private:
    std::string path_;
    Descriptor file_;
    std::int64_t size_ = 0;
    std::int64_t changed_ = 0;  // modification time in nanoseconds
};

/// Raises the limit on open files, if the system allows it, so that `count` files and some hundred others can
/// be open. Throws Error when the limit does not even allow for the files and what every run opens. `purpose`
/// says what needs the files: "4 processes".
void require_open_files(std::size_t count, std::string_view purpose);

}  // namespace gradtile
