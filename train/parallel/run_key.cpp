#include <gradtile/train/parallel/run_key.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <gradtile/core/check.h>
#include <gradtile/core/descriptor.h>
#include <gradtile/train/parallel/internal/authentication.h>

namespace gradtile {
namespace {

constexpr std::size_t min_key_length = 32, max_key_length = 1024;
constexpr const char* advice =
    "; set GRADTILE_RUN_KEY to the same secret for every process instead (openssl rand -hex 32 makes one)";

std::string key_directory() {
    // TMPDIR is not used, because it may differ between processes.
    return concat("/tmp/gradtile-", ::geteuid());
}
std::string key_name(int port) {
    return concat("port-", port, ".key");
}

/// Checks owner and mode: another user may have created the directory, or a link in its place.
Descriptor open_key_directory() {
    const std::string path = key_directory();
    Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    check(*directory >= 0, path, ": ", std::strerror(errno), advice);
    struct stat found {};
    check(::fstat(*directory, &found) == 0 && found.st_uid == ::geteuid() && (found.st_mode & 077) == 0, path,
          ": expected a directory that belongs to this user and is closed to others (mode 0700)", advice);
    return directory;
}

}  // namespace

void check_run_key(const std::string& key) {
    const bool is_printable =
        std::all_of(key.begin(), key.end(), [](char c) { return c >= ' ' && c <= '~'; });
    check(key.size() >= min_key_length && key.size() <= max_key_length && is_printable,
          "GRADTILE_RUN_KEY: ", key.size(), " characters; expected ", min_key_length, " to ", max_key_length,
          " printable characters, such as the output of openssl rand -hex 32");
}

std::string KeyFile::path(int port) {
    return concat(key_directory(), '/', key_name(port));
}

KeyFile::KeyFile(int port, const std::string& key) : port_(port) {
    ::mkdir(key_directory().c_str(), 0700);  // open_key_directory() reports errors
    const Descriptor directory = open_key_directory();
    const std::string temporary = concat(key_name(port), '.', random_key().substr(0, 16));
    const Descriptor file(
        ::openat(*directory, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    check(*file >= 0, key_directory(), '/', temporary, ": ", std::strerror(errno), advice);
    const bool is_written =
        ::write(*file, key.data(), key.size()) == std::ssize(key) &&
        ::renameat(*directory, temporary.c_str(), *directory, key_name(port).c_str()) == 0;
    const int error = errno;
    if (!is_written) ::unlinkat(*directory, temporary.c_str(), 0);
    check(is_written, path(port), ": ", std::strerror(error), advice);
}

KeyFile::~KeyFile() {
    ::unlink(path(port_).c_str());
}

std::string KeyFile::read(int port) {
    const Descriptor directory = open_key_directory();
    const Descriptor file(
        ::openat(*directory, key_name(port).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    check(
        *file >= 0, path(port), ": ", std::strerror(errno),
        "; the processes of that rank 0 are all connected already, or it runs as another user or in another "
        "container",
        advice);
    struct stat found {};
    check(::fstat(*file, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == ::geteuid() &&
              (found.st_mode & 077) == 0,
          path(port), ": expected a file that belongs to this user and is closed to others (mode 0600)",
          advice);
    std::array<char, max_key_length> text;
    const ssize_t bytes = ::read(*file, text.data(), text.size());
    check(bytes >= static_cast<ssize_t>(min_key_length), path(port), ": holds no key", advice);
    return {text.data(), static_cast<std::size_t>(bytes)};
}

}  // namespace gradtile
