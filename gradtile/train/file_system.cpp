#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gradtile/train/file_system.h>

namespace gradtile {

namespace {

template <class Result>
std::int64_t or_errno(Result result) {
    return result < 0 ? -std::int64_t{errno} : static_cast<std::int64_t>(result);
}
template <class Result>
int or_errno_int(Result result) {
    return static_cast<int>(or_errno(result));
}

}  // namespace

int FileSystem::open(const std::filesystem::path& path, int flags, int mode) {
    return or_errno_int(::open(path.c_str(), flags | O_CLOEXEC, mode));
}
int FileSystem::close(int file) {
    return or_errno_int(::close(file));
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
    // Not posix_fallocate: where the file system cannot reserve, that one writes every block instead.
    return or_errno_int(::fallocate(file, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)));
}
int FileSystem::truncate(int file, std::uint64_t bytes) {
    return or_errno_int(::ftruncate(file, static_cast<off_t>(bytes)));
}
int FileSystem::start_writeback(int file, std::uint64_t offset, std::uint64_t bytes) {
    return or_errno_int(::sync_file_range(file, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                                          SYNC_FILE_RANGE_WRITE));
}
int FileSystem::sync(int file) {
    return or_errno_int(::fsync(file));
}
int FileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
    return or_errno_int(::rename(from.c_str(), to.c_str()));
}
int FileSystem::link(const std::filesystem::path& from, const std::filesystem::path& to) {
    return or_errno_int(::link(from.c_str(), to.c_str()));
}
int FileSystem::remove(const std::filesystem::path& path) {
    return or_errno_int(::unlink(path.c_str()));
}

int FileSystem::make_directory(const std::filesystem::path& path) {
    return or_errno_int(::mkdir(path.c_str(), 0777));
}
int FileSystem::list(const std::filesystem::path& path, std::vector<std::string>& names) {
    std::error_code error;
    names.clear();
    for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
        names.push_back(it->path().filename().string());
    }
    return -error.value();
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
    return static_cast<std::uint64_t>(file_check(fs_->size(file_), "tell the size"));
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
        // A call that writes nothing and names no error would loop for ever: it is taken for a full disk.
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

void sync_directory(FileSystem& fs, const std::filesystem::path& directory) {
    OpenFile file(fs, directory.empty() ? "." : directory, O_RDONLY | O_DIRECTORY);
    file.sync();
    file.close();
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
