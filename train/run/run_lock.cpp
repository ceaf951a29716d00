#include <gradtile/train/run/run_lock.h>

#include <fcntl.h>
#include <sys/file.h>
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

RunLock::RunLock(const std::filesystem::path& directory) {
    with_file_name("lock", directory / ".lock",
                   [&] { file_ = open_own_file(directory / ".lock", O_RDWR | O_CREAT); });
    with_file_name("directory", directory, [&] {
        if (::flock(file_.descriptor(), LOCK_EX | LOCK_NB) != 0) {
            const int reason = errno;
            check(reason != EWOULDBLOCK, "in use by ", holder_in(file_));
            file_check(-reason, "lock");
        }
        const std::string text = this_process() + "\n";
        file_check(FileSystem::posix().truncate(file_.descriptor(), 0), "truncate the lock file");
        const auto bytes = std::as_bytes(std::span(text));
        file_.write(bytes.data(), bytes.size(), 0);
    });
}

}  // namespace gradtile
