#pragma once
/// A file that appears complete or not at all. The content is written under a temporary name in the same
/// directory; then follow fsync, rename, fsync of the directory. Until commit() returns, the final name has
/// no file or the old one.
#include <initializer_list>
#include <span>
#include <string>

#include <gradtile/core/io/file_system.h>

namespace gradtile {

class DurableFile {
  public:
    /// Creates the file temporary_for(final_path), which must not exist. Throws Error, without the file's
    /// name.
    explicit DurableFile(std::filesystem::path final_path, FileSystem& fs = FileSystem::posix());
    /// Removes the temporary file unless it was committed.
    ~DurableFile();
    DurableFile(const DurableFile&) = delete;
    DurableFile& operator=(const DurableFile&) = delete;

    /// The open temporary file; it can be read, too.
    const OpenFile& file() const { return file_; }
    /// Reserves disk space, so that this call throws Error on a full disk, before anything is written. If the
    /// file system cannot reserve space, the writes throw instead.
    void reserve(std::uint64_t bytes);
    /// Truncates the file to `size` (which also frees the disk space reserved beyond it), then calls fsync,
    /// close, rename, and fsync on the directory. With Sync::none neither fsync is called: after a power cut
    /// the file may be empty.
    enum class Sync { file_and_directory, none };
    void commit(std::uint64_t size, Sync sync = Sync::file_and_directory);

    /// Returns an unpredictable name in the directory of `path`: "<path>.tmp-<16 random digits>".
    static std::filesystem::path temporary_for(const std::filesystem::path& path);
    /// Returns true for names that temporary_for() makes, which a killed process may have left.
    static bool is_temporary(const std::filesystem::path& path);

  private:
    FileSystem& fs_;
    std::filesystem::path final_path_;
    std::filesystem::path temporary_;
    OpenFile file_;
    bool renamed_ = false;
};

/// Writes the parts of a result one after another to a file that appears complete or not at all: if the
/// process is interrupted or the disk is full, the path has no file or the old one. A power cut may leave an
/// empty file, because nothing is synced. The target of a symbolic link is replaced, not the link. A pipe or
/// a device, such as /dev/stdout, receives the parts directly. Throws Error with the path.
void write_whole_file(const std::string& path, std::initializer_list<std::span<const std::byte>> parts);

}  // namespace gradtile
