#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>  // declares getentropy() on macOS
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <gradtile/core/io/file_system.h>
#include <gradtile/core/os/internal/operating_system.h>
#include <gradtile/core/text/hexadecimal.h>
#include <gradtile/core/text/with_source.h>

namespace gradtile {

namespace {

template <class Result>
Result or_errno(Result result) {
    return result < 0 ? -errno : result;
}

}  // namespace

int FileSystem::open(const std::filesystem::path& path, int flags, int mode) {
    return or_errno(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, mode));
}
int FileSystem::close(int file) {
    return or_errno(::close(file));
}
std::int64_t FileSystem::read_at(int file, std::byte* data, std::size_t bytes, std::uint64_t offset) {
    return or_errno(::pread(file, data, bytes, static_cast<off_t>(offset)));
}
std::int64_t FileSystem::write_at(int file, const std::byte* data, std::size_t bytes, std::uint64_t offset) {
    return or_errno(::pwrite(file, data, bytes, static_cast<off_t>(offset)));
}
std::int64_t FileSystem::size(int file) {
    struct stat status {};
    if (::fstat(file, &status) != 0) return -errno;
    return S_ISREG(status.st_mode) ? static_cast<std::int64_t>(status.st_size) : -EINVAL;
}
int FileSystem::reserve(int file, std::uint64_t bytes) {
    return os::reserve(file, bytes);
}
int FileSystem::truncate(int file, std::uint64_t bytes) {
    return or_errno(::ftruncate(file, static_cast<off_t>(bytes)));
}
std::int64_t FileSystem::free_bytes(const std::filesystem::path& path) {
    struct statvfs status {};
    if (::statvfs(path.c_str(), &status) != 0) return -errno;
    const auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    const std::uint64_t block = std::max<std::uint64_t>(status.f_frsize, 1);
    return static_cast<std::int64_t>(std::min<std::uint64_t>(status.f_bavail, largest / block) * block);
}
int FileSystem::start_writeback(int file, std::uint64_t offset, std::uint64_t bytes) {
    return os::start_writeback(file, offset, bytes);
}
int FileSystem::sync(int file) {
    return os::sync(file);
}
int FileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
    return or_errno(::rename(from.c_str(), to.c_str()));
}
int FileSystem::rename_new(const std::filesystem::path& from, const std::filesystem::path& to) {
    const int renamed = os::rename_new(from.c_str(), to.c_str());
    if (renamed != -EINVAL && renamed != -ENOSYS) return renamed;
    struct stat found {};  // the system or the file system lacks this call
    return ::lstat(to.c_str(), &found) == 0 ? -EEXIST : rename(from, to);
}
int FileSystem::lock(int file) {
    return or_errno(::flock(file, LOCK_EX | LOCK_NB));
}
bool FileSystem::has_name(int file, const std::filesystem::path& path) {
    struct stat opened {};
    struct stat named {};
    return ::fstat(file, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}
int FileSystem::link(const std::filesystem::path& from, const std::filesystem::path& to) {
    return or_errno(::link(from.c_str(), to.c_str()));
}
bool no_links(int linked) {
    return linked == -EPERM || linked == -EOPNOTSUPP || linked == -ENOSYS || linked == -EMLINK;
}
int FileSystem::remove(const std::filesystem::path& path) {
    return or_errno(::unlink(path.c_str()));
}

int FileSystem::make_directory(const std::filesystem::path& path) {
    return or_errno(::mkdir(path.c_str(), 0777));
}
int FileSystem::list(const std::filesystem::path& path, std::vector<std::string>& names) {
    // Not std::filesystem::directory_iterator: libstdc++'s ends the process when memory is short.
    struct Close {
        void operator()(DIR* directory) const { ::closedir(directory); }
    };
    names.clear();
    const std::unique_ptr<DIR, Close> directory(::opendir(path.c_str()));
    if (!directory) return -errno;
    for (;;) {
        errno = 0;
        const dirent* const entry = ::readdir(directory.get());
        if (entry == nullptr) return -errno;
        const std::string_view name(entry->d_name);
        if (name != "." && name != "..") names.emplace_back(name);
    }
}

FileSystem& FileSystem::posix() {
    static FileSystem machine;
    return machine;
}

std::string describe_errno(std::int64_t code) {
    return std::generic_category().message(static_cast<int>(code < 0 ? -code : code));
}

std::int64_t file_check(std::int64_t result, const char* what) {
    check(result >= 0, "cannot ", what, ": ", describe_errno(result));
    return result;
}

OpenFile::OpenFile(FileSystem& fs, const std::filesystem::path& path, int flags, int mode)
    : fs_(&fs),
      file_(static_cast<int>(
          file_check(fs.open(path, flags, mode), (flags & O_ACCMODE) == O_RDONLY ? "open" : "create"))) {}

OpenFile::~OpenFile() {
    if (is_open()) fs_->close(file_);
}

OpenFile::OpenFile(OpenFile&& other) noexcept : fs_(other.fs_), file_(std::exchange(other.file_, -1)) {}

OpenFile& OpenFile::operator=(OpenFile&& other) noexcept {
    if (this != &other) {
        if (is_open()) fs_->close(file_);
        fs_ = other.fs_;
        file_ = std::exchange(other.file_, -1);
    }
    return *this;
}

std::uint64_t OpenFile::size() const {
    const std::int64_t size = fs_->size(file_);
    check(size != -EINVAL, "is not a regular file");
    return static_cast<std::uint64_t>(file_check(size, "determine the size"));
}

void OpenFile::read(std::byte* data, std::size_t bytes, std::uint64_t offset) const {
    while (bytes > 0) {
        const std::int64_t done = fs_->read_at(file_, data, bytes, offset);
        if (done == -EINTR) continue;
        file_check(done, "read");
        check(done > 0, "ends at byte ", offset, ", ", bytes, " more expected");
        data += done;
        bytes -= static_cast<std::size_t>(done);
        offset += static_cast<std::uint64_t>(done);
    }
}

void OpenFile::write(const std::byte* data, std::size_t bytes, std::uint64_t offset) const {
    while (bytes > 0) {
        const std::int64_t done = fs_->write_at(file_, data, bytes, offset);
        if (done == -EINTR) continue;
        // A write of 0 bytes without an error would repeat forever, so it counts as a full disk.
        file_check(done == 0 ? -ENOSPC : done, "write");
        data += done;
        bytes -= static_cast<std::size_t>(done);
        offset += static_cast<std::uint64_t>(done);
    }
}

void OpenFile::sync() const {
    file_check(fs_->sync(file_), "fsync");
}

void OpenFile::close() {
    if (!is_open()) return;
    file_check(fs_->close(std::exchange(file_, -1)), "close");
}

namespace {

struct stat file_status_of(const OpenFile& file) {
    struct stat status {};
    file_check(or_errno(::fstat(file.descriptor(), &status)), "examine");
    return status;
}

/// Makes a file in a directory and removes its name, so that a killed process leaves nothing.
OpenFile unnamed_file_in(FileSystem& fs, const std::filesystem::path& directory, const char* prefix) {
    const std::filesystem::path name = directory / concat(prefix, random_hex(8));
    OpenFile file(fs, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
    file_check(fs.remove(name), "remove a temporary");
    return file;
}

// O_NOFOLLOW would also refuse a link, but with the message "Too many levels of symbolic links".
void refuse_symbolic_link(const std::filesystem::path& path, int flags) {
    struct stat status {};
    const bool is_link = ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
    check((flags & O_NOFOLLOW) == 0 || !is_link, "is a symbolic link; expected a regular file");
}

}  // namespace

OpenFile open_regular_file(FileSystem& fs, const std::filesystem::path& path, SymbolicLinks links) {
    const int flags = O_RDONLY | (links == SymbolicLinks::refuse ? O_NOFOLLOW : 0);
    refuse_symbolic_link(path, flags);
    const int descriptor = fs.open(path, flags, 0);
    check(descriptor >= 0, "cannot be opened: ", describe_errno(descriptor));
    OpenFile file(fs, descriptor);
    check(fs.size(descriptor) != -EINVAL,
          is_directory(path) ? "is a directory; expected a file" : "is not a regular file");
    return file;
}

OpenFile open_own_file(const std::filesystem::path& path, int flags) {
    flags |= O_NOFOLLOW;
    refuse_symbolic_link(path, flags);
    OpenFile file(FileSystem::posix(), path, flags);
    const struct stat status = file_status_of(file);
    check(!S_ISDIR(status.st_mode), "is a directory; expected a file");
    check(S_ISREG(status.st_mode), "is not a regular file");
    check(status.st_nlink <= 1, "has ", status.st_nlink,
          " names (hard links); expected a file of this run alone");
    check(status.st_uid == ::geteuid() || status.st_uid == owner_of_new_files(path.parent_path()),
          "belongs to user ", status.st_uid, "; expected a file of user ", ::geteuid());
    return file;
}

std::uint32_t owner_of_new_files(const std::filesystem::path& directory) {
    return file_status_of(unnamed_file_in(FileSystem::posix(), directory, ".lock.tmp-")).st_uid;
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes, SymbolicLinks links) {
    return with_source(path.string(), [&] {
        const OpenFile file = open_regular_file(FileSystem::posix(), path, links);
        const std::uint64_t size = file.size();
        check(size <= max_bytes, size, " bytes; expected at most ", max_bytes);
        // The loop does not rely on `size`: files in /proc have the size 0, and other files may grow.
        constexpr std::size_t chunk = 64 * 1024;
        std::string text;
        text.reserve(static_cast<std::size_t>(size) + chunk);  // growing would take twice the memory
        for (std::int64_t done = 1; done != 0 && text.size() <= max_bytes;) {
            const std::size_t filled = text.size();
            text.resize(filled + chunk);
            done = file.file_system().read_at(file.descriptor(), reinterpret_cast<std::byte*>(&text[filled]),
                                              chunk, filled);
            text.resize(filled + static_cast<std::size_t>(std::max<std::int64_t>(done, 0)));
            if (done != -EINTR) file_check(done, "read");
        }
        check(text.size() <= max_bytes, "more than ", max_bytes, " bytes; expected at most ", max_bytes);
        return text;
    });
}

TextLines::TextLines(OpenFile file, std::size_t max_bytes) : file_(std::move(file)), max_bytes_(max_bytes) {}

bool TextLines::next(std::string_view& line) {
    std::size_t searched = begin_;
    while (true) {
        const std::size_t end = buffer_.find('\n', searched);
        if (end == std::string::npos) {
            if (buffer_.size() - begin_ > max_bytes_) {
                skips_ = true;
                begin_ = buffer_.size();
            }
            if (!fill()) return false;
            searched = begin_;
            continue;
        }
        line = std::string_view(buffer_).substr(begin_, end - begin_);
        begin_ = searched = end + 1;
        if (!std::exchange(skips_, false) && line.size() <= max_bytes_) return true;
    }
}

bool TextLines::fill() {
    constexpr std::size_t chunk = 256 * 1024;
    buffer_.erase(0, std::exchange(begin_, 0));
    const std::size_t kept = buffer_.size();
    buffer_.resize(kept + chunk);
    std::int64_t done = -EINTR;
    while (done == -EINTR)
        done = file_.file_system().read_at(file_.descriptor(), reinterpret_cast<std::byte*>(&buffer_[kept]),
                                           chunk, offset_);
    buffer_.resize(kept + static_cast<std::size_t>(std::max<std::int64_t>(done, 0)));
    offset_ += static_cast<std::uint64_t>(file_check(done, "read"));
    return done > 0;
}

std::string random_hex(std::size_t bytes) {
    std::string random(bytes, '\0');
    file_check(or_errno(::getentropy(random.data(), bytes)), "draw random bytes");
    return hexadecimal(std::as_bytes(std::span(random)));
}

namespace {

/// Returns the absolute path without links and dots; empty if it cannot be determined.
std::filesystem::path normal(const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
}

}  // namespace

bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
    std::error_code error;
    if (std::filesystem::equivalent(a, b, error)) return true;
    const std::filesystem::path first = normal(a), second = normal(b);
    return !first.empty() && first == second;
}

bool is_inside(const std::filesystem::path& path, const std::filesystem::path& directory) {
    const std::filesystem::path inner = normal(path);
    std::filesystem::path outer = normal(directory);
    if (!outer.has_filename()) outer = outer.parent_path();  // the path ended with a slash
    if (inner.empty() || outer.empty()) return false;
    return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

void sync_directory(FileSystem& fs, const std::filesystem::path& directory) {
    OpenFile file(fs, directory.empty() ? "." : directory, O_RDONLY | O_DIRECTORY);
    file.sync();
    file.close();
}

void require_disk_space(FileSystem& fs, const std::filesystem::path& directory, std::uint64_t bytes) {
    const OpenFile file = unnamed_file_in(fs, directory, ".space.tmp-");
    const int reserved = fs.reserve(file.descriptor(), bytes);
    if (reserved != -EOPNOTSUPP && reserved != -ENOSYS) {
        file_check(reserved, "reserve disk space");
        return;
    }
    const std::int64_t available = file_check(fs.free_bytes(directory), "determine the free disk space");
    check(static_cast<std::uint64_t>(available) >= bytes, "the disk has ", available, " free bytes");
}

void make_directories(FileSystem& fs, const std::filesystem::path& path) {
    int made = fs.make_directory(path);
    if (made == -ENOENT && path.has_parent_path() && path.parent_path() != path) {
        make_directories(fs, path.parent_path());
        made = fs.make_directory(path);
    }
    if (made == -EEXIST) return;
    file_check(made, "create the directory");
    sync_directory(fs, path.parent_path());
}

}  // namespace gradtile
