#pragma once
/// A file that appears whole or not at all: written under a temporary name beside its place, then
/// fsync - rename - fsync of the directory. Until commit() returns nothing exists under the final name (or
/// the old file does).
#include <gradtile/core/io/file_system.h>

namespace gradtile {

class DurableFile {
  public:
    /// Creates the file temporary_for(final_path), which must not exist. Throws Error, without the file's
    /// name.
    explicit DurableFile(std::filesystem::path final_path, FileSystem& fs = FileSystem::posix());
    /// Removes the temporary unless it was committed.
    ~DurableFile();
    DurableFile(const DurableFile&) = delete;
    DurableFile& operator=(const DurableFile&) = delete;

    /// The open temporary, readable too.
    const OpenFile& file() const { return file_; }
    /// Sets space aside, so that a full disk shows before anything is written; where the file system cannot,
    /// the writes themselves will tell.
    void reserve(std::uint64_t bytes);
    /// Cuts the file (and what was reserved beyond) to `size`, then fsync, close, rename, fsync directory.
    /// Sync::none leaves both fsyncs out: after a power cut the file may be empty.
    enum class Sync { file_and_directory, none };
    void commit(std::uint64_t size, Sync sync = Sync::file_and_directory);

    /// A name beside `path` that nobody can predict: "<path>.tmp-<16 random digits>".
    static std::filesystem::path temporary_for(const std::filesystem::path& path);
    /// True for names this class gives its temporaries: what a killed process may leave behind.
    static bool is_temporary(const std::filesystem::path& path);

  private:
    FileSystem& fs_;
    std::filesystem::path final_path_;
    std::filesystem::path temporary_;
    OpenFile file_;
    bool renamed_ = false;
};

}  // namespace gradtile
