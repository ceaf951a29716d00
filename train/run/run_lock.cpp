#include <gradtile/train/run/run_lock.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <span>
#include <string>

#include <gradtile/core/check.h>

namespace gradtile {

namespace {

// Returns the text for the lock file: "process 4711 on host a".
std::string this_process() {
    std::array<char, 256> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
    return concat("process ", ::getpid(), " on host ", host.data());
}

std::string holder_in(const OpenFile& file) {
    std::array<std::byte, 300> bytes{};
    const std::size_t size = std::min<std::size_t>(file.size(), bytes.size());
    file.read(bytes.data(), size, 0);
    std::string text;
    for (const std::byte b : std::span(bytes).first(size)) {
        const char c = static_cast<char>(b);
        if (c >= ' ' && c <= '~') text += c;
    }
    return text.empty() ? "another process" : text;
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& directory) : path_(directory / ".lock") {
    do {
        with_file_name("lock", path_, [&] { file_ = open_own_file(path_, O_RDWR | O_CREAT); });
        with_file_name("directory", directory, [&] {
            if (::flock(file_.descriptor(), LOCK_EX | LOCK_NB) != 0) {
                const int reason = errno;
                check(reason != EWOULDBLOCK, "in use by ", holder_in(file_));
                file_check(-reason, "lock");
            }
        });
        // Another process may have removed the file between the two calls; the lock of a file without a name
        // protects nothing.
    } while (!has_name());
    with_file_name("directory", directory, [&] {
        const std::string text = this_process() + "\n";
        file_check(FileSystem::posix().truncate(file_.descriptor(), 0), "truncate the lock file");
        const auto bytes = std::as_bytes(std::span(text));
        file_.write(bytes.data(), bytes.size(), 0);
    });
}

bool RunLock::has_name() const {
    struct stat locked {
    }, named{};
    return ::fstat(file_.descriptor(), &locked) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
           locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
}

void RunLock::remove_file() const {
    FileSystem::posix().remove(path_);
}

}  // namespace gradtile
