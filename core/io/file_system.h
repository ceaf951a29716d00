#pragma once
/// Every file operation a checkpoint's safety depends on goes through this table, so that tests can record
/// the order, fail the n-th call and replay what a crash would have left behind.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/core/text/message.h>

namespace gradtile {

/// POSIX calls with POSIX meanings; a negative result is -errno. An implementation may be called from any
/// thread.
class FileSystem {
  public:
    virtual ~FileSystem() = default;

    /// A file descriptor. `flags` are open(2)'s; O_CLOEXEC and O_NONBLOCK are added: opening a pipe must not
    /// wait for its other end.
    virtual int open(const std::filesystem::path& path, int flags, int mode);
    virtual int close(int file);
    /// Bytes read or written, which may be fewer than asked for.
    virtual std::int64_t read_at(int file, std::byte* data, std::size_t bytes, std::uint64_t offset);
    virtual std::int64_t write_at(int file, const std::byte* data, std::size_t bytes, std::uint64_t offset);
    virtual std::int64_t size(int file);
    /// Sets disk space aside without changing the size. -EOPNOTSUPP where the file system cannot.
    virtual int reserve(int file, std::uint64_t bytes);
    virtual int truncate(int file, std::uint64_t bytes);
    /// Asks the kernel to begin writing this range to the disk; only a hint.
    virtual int start_writeback(int file, std::uint64_t offset, std::uint64_t bytes);
    /// fsync, of a file or a directory.
    virtual int sync(int file);
    virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to);
    virtual int link(const std::filesystem::path& from, const std::filesystem::path& to);
    virtual int remove(const std::filesystem::path& path);
    /// mkdir; -EEXIST when there already is something of that name.
    virtual int make_directory(const std::filesystem::path& path);
    /// The names in a directory, in no order.
    virtual int list(const std::filesystem::path& path, std::vector<std::string>& names);

    /// The machine's own.
    static FileSystem& posix();
};

/// "No space left on device" for -ENOSPC or ENOSPC.
std::string describe_errno(std::int64_t code);

/// Throws Error "cannot WHAT: reason" when a FileSystem result is negative; returns it otherwise. Whoever
/// knows what the file is to the user puts its name in front (see with_file_name()).
std::int64_t file_check(std::int64_t result, const char* what);

/// A descriptor that closes itself; close() reports what the destructor has to swallow. Errors name what
/// could not be done, not the file.
class OpenFile {
  public:
    OpenFile() = default;
    OpenFile(FileSystem& fs, const std::filesystem::path& path, int flags, int mode = 0644);
    /// Takes over an open descriptor.
    OpenFile(FileSystem& fs, int descriptor) : fs_(&fs), file_(descriptor) {}
    ~OpenFile();
    OpenFile(OpenFile&& other) noexcept;
    OpenFile& operator=(OpenFile&& other) noexcept;
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;

    bool is_open() const { return file_ >= 0; }
    int descriptor() const { return file_; }
    FileSystem& file_system() const { return *fs_; }
    std::uint64_t size() const;
    /// Whole ranges or Error; calls that were cut short or interrupted are continued.
    void read(std::byte* data, std::size_t bytes, std::uint64_t offset) const;
    void write(const std::byte* data, std::size_t bytes, std::uint64_t offset) const;
    void sync() const;
    void close();

  private:
    FileSystem* fs_ = nullptr;
    int file_ = -1;
};

/// What to do with a name that is a symbolic link.
enum class SymbolicLinks { follow, refuse };

/// Opens a regular file for reading, without waiting. Throws Error, without the file's name, when it is
/// absent, a directory, a pipe, a device or, with SymbolicLinks::refuse, a symbolic link.
OpenFile open_regular_file(FileSystem& fs, const std::filesystem::path& path,
                           SymbolicLinks links = SymbolicLinks::follow);

/// Opens a file that a run keeps in its directory; `flags` are open(2)'s. Somebody else may have prepared the
/// directory so that the name leads to a foreign file. Throws Error, without the file's name, when the name
/// is a symbolic link, the file has more than one name (hard links), is not a regular file, or belongs to
/// another user.
OpenFile open_own_file(const std::filesystem::path& path, int flags);

/// The user that owns the files this process creates in a directory. This user is not always geteuid(): some
/// mounts assign all files to one user.
std::uint32_t owner_of_new_files(const std::filesystem::path& directory);

/// Returns the contents of a small regular file. Throws Error "FILE: is not a regular file", "FILE: N bytes;
/// expected at most M" and the like.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes,
                           SymbolicLinks links = SymbolicLinks::follow);

/// Reads a text file line by line. Memory use depends on `max_bytes`, not on the file.
class TextLines {
  public:
    /// Lines of more than `max_bytes` bytes are skipped.
    TextLines(OpenFile file, std::size_t max_bytes);
    /// Sets `line` to the next line, without its end; it is valid until the next call. Returns false at the
    /// end of the file; a last line without an end is not returned, as a crash may have cut it.
    bool next(std::string_view& line);

  private:
    /// Appends what the file holds next to the buffer. Returns false at the end of the file.
    bool fill();

    OpenFile file_;
    std::size_t max_bytes_;
    std::string buffer_;
    std::size_t begin_ = 0;     // of the line in buffer_
    std::uint64_t offset_ = 0;  // in the file, of what comes after buffer_
    bool skips_ = false;        // the line in buffer_ is the rest of a skipped one
};

/// Returns `bytes` random bytes from the kernel as hexadecimal digits, for names that nobody can predict.
std::string random_hex(std::size_t bytes);

/// fsync of a directory: only then are renames, links and removals in it durable.
void sync_directory(FileSystem& fs, const std::filesystem::path& directory);

/// Makes a directory and those above it that do not exist, durably. Throws Error, without the name.
void make_directories(FileSystem& fs, const std::filesystem::path& path);

/// Runs `work` and puts "WHAT FILE: " in front of the message of what it throws, as an Error.
template <class Work>
auto with_file_name(const char* what, const std::filesystem::path& path, Work&& work) {
    try {
        return work();
    } catch (const Error& error) {
        throw Error(concat(what, ' ', path.string(), ": ", error.what()), error.where());
    } catch (const std::bad_alloc&) {
        throw;  // says nothing about the file
    } catch (const std::exception& error) {
        throw Error(concat(what, ' ', path.string(), ": ", message_of(error)));
    }
}

}  // namespace gradtile
