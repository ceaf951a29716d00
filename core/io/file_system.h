#pragma once
/// The file operations that a checkpoint's safety depends on. The functions are virtual, so that tests can
/// record their order, make the n-th call fail, and replay the states after a crash.
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

/// POSIX calls with POSIX meanings; a negative result is -errno. Any thread may call an implementation.
class FileSystem {
  public:
    virtual ~FileSystem() = default;

    /// Returns a file descriptor. `flags` are open(2)'s flags; this function adds O_CLOEXEC and O_NONBLOCK:
    /// opening a pipe must not wait for its other end.
    virtual int open(const std::filesystem::path& path, int flags, int mode);
    virtual int close(int file);
    /// Return how many bytes were read or written, which may be fewer than requested.
    virtual std::int64_t read_at(int file, std::byte* data, std::size_t bytes, std::uint64_t offset);
    virtual std::int64_t write_at(int file, const std::byte* data, std::size_t bytes, std::uint64_t offset);
    virtual std::int64_t size(int file);
    /// Reserves disk space without changing the size. -EOPNOTSUPP if the file system cannot.
    virtual int reserve(int file, std::uint64_t bytes);
    virtual int truncate(int file, std::uint64_t bytes);
    /// Returns how many bytes this user can still write to an existing path's disk.
    virtual std::int64_t free_bytes(const std::filesystem::path& path);
    /// Asks the kernel to begin writing this range to the disk; only a hint.
    virtual int start_writeback(int file, std::uint64_t offset, std::uint64_t bytes);
    /// fsync, for a file or a directory.
    virtual int sync(int file);
    virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to);
    /// Renames to a name that must not exist; -EEXIST when it does.
    virtual int rename_new(const std::filesystem::path& from, const std::filesystem::path& to);
    /// Locks an open file or directory until it is closed, against other open files with this name.
    /// -EWOULDBLOCK when it is locked already; another error when the file system has no locks.
    virtual int lock(int file);
    /// Returns whether `path` names this open file.
    virtual bool has_name(int file, const std::filesystem::path& path);
    /// Gives a file a second name, which must not exist; -EEXIST when it does. See no_links().
    virtual int link(const std::filesystem::path& from, const std::filesystem::path& to);
    virtual int remove(const std::filesystem::path& path);
    /// mkdir; -EEXIST when the name exists already.
    virtual int make_directory(const std::filesystem::path& path);
    /// Lists the names in a directory, in no order.
    virtual int list(const std::filesystem::path& path, std::vector<std::string>& names);

    /// The operating system's files.
    static FileSystem& posix();
};

/// Whether a result of FileSystem::link() says that the file system makes no link to the file.
bool no_links(int linked);

/// How to handle a file that already exists under a new file's name.
enum class Existing { replace, refuse };

/// Describes an errno value of either sign: "No space left on device" for -ENOSPC and ENOSPC.
std::string describe_errno(std::int64_t code);

/// Throws Error "cannot WHAT: reason" when a FileSystem result is negative; otherwise returns the result. A
/// caller that knows the file's name adds it with with_file_name().
std::int64_t file_check(std::int64_t result, const char* what);

/// Owns a file descriptor. close() reports errors, which the destructor cannot. Error messages name the
/// operation, not the file.
class OpenFile {
  public:
    OpenFile() = default;
    OpenFile(FileSystem& fs, const std::filesystem::path& path, int flags, int mode = 0644);
    /// Takes ownership of an open descriptor.
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
    /// Read or write the whole range, or throw Error; short and interrupted calls are continued.
    void read(std::byte* data, std::size_t bytes, std::uint64_t offset) const;
    void write(const std::byte* data, std::size_t bytes, std::uint64_t offset) const;
    void sync() const;
    void close();

  private:
    FileSystem* fs_ = nullptr;
    int file_ = -1;
};

/// How to treat a name that is a symbolic link.
enum class SymbolicLinks { follow, refuse };

/// Opens a regular file for reading without blocking. Throws Error, without the file's name, when the file is
/// absent, a directory, a pipe, a device or, with SymbolicLinks::refuse, a symbolic link.
OpenFile open_regular_file(FileSystem& fs, const std::filesystem::path& path,
                           SymbolicLinks links = SymbolicLinks::follow);

/// Opens a file in a run's directory; `flags` are open(2)'s flags. Another user may have prepared the
/// directory so that the name leads to a foreign file. So this function throws Error, without the file's
/// name, when the name is a symbolic link, or the file has several names (hard links), is not a regular file,
/// or belongs to another user.
OpenFile open_own_file(const std::filesystem::path& path, int flags);

/// Returns the user that owns the files this process creates in a directory. The result is not always
/// geteuid(): some mounts assign all files to one user.
std::uint32_t owner_of_new_files(const std::filesystem::path& directory);

/// Returns a small regular file's contents. Throws Error such as "FILE: is not a regular file" or "FILE: N
/// bytes; expected at most M".
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes,
                           SymbolicLinks links = SymbolicLinks::follow);

/// Reads a text file line by line. Memory use depends on `max_bytes`, not on the file.
class TextLines {
  public:
    /// Skips lines with more than `max_bytes` bytes.
    TextLines(OpenFile file, std::size_t max_bytes);
    /// Sets `line` to the next line, without its end; it is valid until the next call. Returns false when the
    /// file ends; a last line without a line end is not returned, because a crash may have truncated it.
    bool next(std::string_view& line);

  private:
    /// Appends the file's next bytes to the buffer. Returns false when the file ends.
    bool fill();

    OpenFile file_;
    std::size_t max_bytes_;
    std::string buffer_;
    std::size_t begin_ = 0;     // where the next line begins in buffer_
    std::uint64_t offset_ = 0;  // file offset where the bytes after buffer_ begin
    bool skips_ = false;        // buffer_ holds the rest of a line that is skipped
};

/// Returns `bytes` random bytes from the kernel as hexadecimal digits, for names that nobody can predict.
std::string random_hex(std::size_t bytes);

/// Returns whether two paths name one file. Symbolic and hard links are followed. A file that does not exist
/// yet is compared by its path.
bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b);

/// Returns whether a path, which need not exist, lies in a directory or is the directory itself. Symbolic
/// links in both paths are followed.
bool is_inside(const std::filesystem::path& path, const std::filesystem::path& directory);

/// Calls fsync on a directory. Only this makes renames, links and removals in the directory durable.
void sync_directory(FileSystem& fs, const std::filesystem::path& directory);

/// Creates a directory and its missing parents, durably. Throws Error, without the directory's name.
void make_directories(FileSystem& fs, const std::filesystem::path& path);

/// Throws Error, without the directory's name, when an existing directory's disk has no room for a file with
/// `bytes` bytes. The space is reserved for a moment in a file without a name, so that quotas count, too. If
/// the file system cannot reserve space, the disk's free space decides.
void require_disk_space(FileSystem& fs, const std::filesystem::path& directory, std::uint64_t bytes);

/// Runs `work`. Prefixes an exception's message with "WHAT FILE: " and throws it as an Error.
template <class Work>
auto with_file_name(const char* what, const std::filesystem::path& path, Work&& work) {
    try {
        return work();
    } catch (const Error& error) {
        throw Error(concat(what, ' ', path.string(), ": ", error.what()), error.where());
    } catch (const std::bad_alloc&) {
        throw;  // rethrown without the file's name, because the file did not cause the error
    } catch (const std::exception& error) {
        throw Error(concat(what, ' ', path.string(), ": ", message_of(error)));
    }
}

}  // namespace gradtile
