#include <gradtile/core/io/data_file.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <gradtile/core/check.h>
#include <gradtile/core/os/internal/operating_system.h>

namespace gradtile {
namespace {

struct stat status_of(const Descriptor& file, const std::string& path) {
    struct stat status {};
    const int result = ::fstat(*file, &status);
    check(result == 0, path, ": cannot be examined: ", std::strerror(errno));
    return status;
}

Descriptor opened(const std::string& path) {
    check(!path.empty(), "data: no file given");
    // Without O_NONBLOCK, opening a pipe without a writer would block forever; with it, the pipe is refused.
    Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
    const int error = errno;
    check(*file >= 0 || error != ENXIO, path,
          ": is not a regular file");  // a socket, or a device file without its device
    check(*file >= 0, path, ": cannot be opened: ", std::strerror(error));
    return file;
}

}  // namespace

DataFile::DataFile(const std::string& path) : path_(path), file_(opened(path)) {
    const struct stat status = status_of(file_, path_);
    check(!S_ISDIR(status.st_mode), path_, ": is a directory; expected a file");
    check(S_ISREG(status.st_mode), path_, ": is not a regular file");
    size_ = status.st_size;
    changed_ = os::modification_time(status);
}

void DataFile::read(std::int64_t offset, std::span<std::byte> out) const {
    check(offset >= 0 && offset <= size_ - std::ssize(out), path_, ": bytes [", offset, ", ",
          offset + std::ssize(out), ") of ", size_);
    while (!out.empty()) {
        const ssize_t got = ::pread(*file_, out.data(), out.size(), offset);
        if (got < 0 && errno == EINTR) continue;
        check(got >= 0, path_, ": cannot be read at byte ", offset, ": ", std::strerror(errno));
        if (got == 0) {
            require_same_size();
            throw Error(
                concat(path_, ": cannot be read at byte ", offset, ": it was truncated while it was read"));
        }
        out = out.subspan(static_cast<std::size_t>(got));
        offset += got;
    }
}

bool DataFile::was_modified() const {
    const struct stat status = status_of(file_, path_);
    return status.st_size != size_ || os::modification_time(status) != changed_;
}

void DataFile::require_same_size() const {
    const std::int64_t size = status_of(file_, path_).st_size;
    check(size == size_, path_, ": ends at byte ", size, "; expected ", size_,
          " (it was changed while it was read)");
}

void require_open_files(std::size_t count, std::string_view purpose) {
    constexpr rlim_t of_small_run = 32, of_large_run = 512;
    struct rlimit limit {};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;  // open() then reports the error
    const rlim_t wanted = std::min<rlim_t>(count + of_large_run, limit.rlim_max);
    if (limit.rlim_cur < wanted) {
        struct rlimit raised = limit;
        raised.rlim_cur = wanted;
        if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
    }
    const rlim_t needed = count + of_small_run;
    check(limit.rlim_cur >= needed, "ulimit -n: at most ", limit.rlim_cur, " open files; expected ", needed,
          " or more for ", purpose,
          "; start from a new shell, or raise the hard limit (limits.conf, docker --ulimit nofile=", needed,
          ")");
}

}  // namespace gradtile
