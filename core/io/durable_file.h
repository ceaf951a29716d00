#pragma once
/// How every output is written: it appears complete or not at all, also if the process is interrupted.
///
/// The content is written under a temporary name in the same directory, and then gets its final name. An
/// error removes the temporary, and so does a signal (removed_on_signal.h). The next writer with the same
/// final name removes what kill -9 leaves: a writer locks its temporary, so a temporary without a lock has no
/// writer.
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include <gradtile/core/io/file_system.h>
#include <gradtile/core/io/removed_on_signal.h>

namespace gradtile {

/// A temporary file or directory, and the lock that tells other processes that it has a writer.
class LockedTemporary {
  public:
    /// Calls create(path) with unpredictable names in `final_path`'s directory until it has made a file or
    /// directory that could be locked. First removes this final path's temporaries that have no writer.
    /// Throws Error, without the path.
    LockedTemporary(FileSystem& fs, const std::filesystem::path& final_path,
                    const std::function<void(const std::filesystem::path&)>& create);
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
    OpenFile lock_;
    RemovedOnSignal on_signal_;
};

/// Removes a final path's temporaries that a killed process has left. First calls before_removal(temporary)
/// for each, while this process holds its lock.
void remove_stale_temporaries(
    FileSystem& fs, const std::filesystem::path& final_path,
    const std::function<void(const std::filesystem::path& temporary)>& before_removal = {});

/// A file. commit() calls fsync on the file before it gets its final name, and on the directory after it.
/// Until commit() returns, the final name has no file or the old one.
class DurableFile {
  public:
    /// Creates the file under a temporary name. Throws Error, without the file's name, also when the final
    /// name exists and must not be replaced.
    explicit DurableFile(std::filesystem::path final_path, FileSystem& fs = FileSystem::posix(),
                         Existing existing = Existing::replace);
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
    /// the file may be empty. With Existing::refuse, throws Error when the final name exists by now; the
    /// temporary name then remains until the destructor, as a second name (hard link) if the file system has
    /// them.
    enum class Sync { file_and_directory, none };
    void commit(std::uint64_t size, Sync sync = Sync::file_and_directory);

    /// Writes a file with this text. Throws Error, without the file's name.
    static void write(const std::filesystem::path& path, std::string_view text,
                      Sync sync = Sync::file_and_directory);

    /// Returns an unpredictable name in `path`'s directory: "<path>.tmp-<16 random digits>".
    static std::filesystem::path temporary_for(const std::filesystem::path& path);
    /// Returns the path for which temporary_for() has made this name; nullopt for other names.
    static std::optional<std::filesystem::path> final_path_of(const std::filesystem::path& temporary);
    /// Returns true for names that temporary_for() makes, which a killed process may have left.
    static bool is_temporary(const std::filesystem::path& path);

  private:
    FileSystem& fs_;
    std::filesystem::path final_path_;
    Existing existing_;
    OpenFile file_;
    LockedTemporary temporary_;
    bool renamed_ = false;
};

/// A result in a file that appears complete or not at all: if the process is interrupted or the disk is full,
/// the path has no file or the old one. A power cut may leave an empty file, because nothing is synced. The
/// target of a symbolic link is replaced, not the link. Errors name the path.
class WholeFile {
  public:
    /// Writes the parts one after another under a temporary name. A pipe or a device, such as /dev/stdout,
    /// receives them directly.
    WholeFile(const std::string& path, std::initializer_list<std::span<const std::byte>> parts);
    /// Gives the file its name.
    void commit();

  private:
    std::string path_;
    std::optional<DurableFile> file_;  // absent for a pipe or a device
    std::uint64_t size_ = 0;
};

}  // namespace gradtile
