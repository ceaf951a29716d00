#include <gradtile/train/run/run_lock.h>

#include <fcntl.h>
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

RunLock::RunLock(const std::filesystem::path& directory) : path_(directory / file_name) {
    FileSystem& fs = FileSystem::posix();
    do {
        with_file_name("lock", path_, [&] { file_ = open_own_file(path_, O_RDWR | O_CREAT); });
        with_file_name("directory", directory, [&] {
            const int locked = fs.lock(file_.descriptor());
            check(locked != -EWOULDBLOCK, "in use by ", holder_in(file_));
            file_check(locked, "lock");
        });
        // Another process may have removed the file between the two calls; a lock on a file without a name
        // protects nothing.
    } while (!fs.has_name(file_.descriptor(), path_));
    try {
        const std::string text = this_process() + "\n";
        file_check(fs.truncate(file_.descriptor(), 0), "truncate the lock file");
        const auto bytes = std::as_bytes(std::span(text));
        file_.write(bytes.data(), bytes.size(), 0);
    } catch (const Error&) {  // the disk is full; only the errors of other processes need the text
    }
}

}  // namespace gradtile
