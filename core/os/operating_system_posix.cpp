// The calls of POSIX, and those of macOS where POSIX has none.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <thread>

#include <gradtile/core/os/internal/operating_system.h>

namespace gradtile::os {
namespace {

/// Makes a descriptor non-blocking and closed on exec. Another thread's fork() may come before this call; a
/// program that is started at that moment keeps the descriptor open.
int prepared(int descriptor) {
    if (descriptor < 0) return -errno;
    ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
#if defined(SO_NOSIGPIPE)
    const int on = 1;  // fails for pipes
    static_cast<void>(::setsockopt(descriptor, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on));
#endif
    return descriptor;
}

int prepared_pair(int made, const int ends[2]) {
    if (made != 0) return -errno;
    prepared(ends[0]);
    prepared(ends[1]);
    return 0;
}

}  // namespace

int reserve(int, std::uint64_t) {
    return -EOPNOTSUPP;
}

int start_writeback(int, std::uint64_t, std::uint64_t) {
    return 0;
}

int sync(int file) {
#if defined(F_FULLFSYNC)
    // macOS's fsync() leaves the data in the disk's cache. Network file systems refuse F_FULLFSYNC.
    if (::fcntl(file, F_FULLFSYNC) == 0) return 0;
#endif
    return ::fsync(file) < 0 ? -errno : 0;
}

int rename_new([[maybe_unused]] const char* from, [[maybe_unused]] const char* to) {
#if defined(__APPLE__)
    if (::renamex_np(from, to, RENAME_EXCL) == 0) return 0;
    return errno == ENOTSUP ? -ENOSYS : -errno;
#else
    return -ENOSYS;
#endif
}

std::int64_t modification_time(const struct stat& status) {
#if defined(__APPLE__)
    const timespec& time = status.st_mtimespec;
#else
    const timespec& time = status.st_mtim;
#endif
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

int unnamed_file() {
    std::error_code error;
    std::string name = (std::filesystem::temp_directory_path(error) / "gradtile-XXXXXX").string();
    const int file = ::mkstemp(name.data());
    if (file < 0) return -errno;
    ::unlink(name.c_str());
    ::fcntl(file, F_SETFD, FD_CLOEXEC);
    return file;
}

int make_pipe(int ends[2]) {
    return prepared_pair(::pipe(ends), ends);
}

int make_socket(int family) {
    return prepared(::socket(family, SOCK_STREAM, 0));
}

int make_socket_pair(int ends[2]) {
    return prepared_pair(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), ends);
}

int accept_connection(int listener) {
    return prepared(::accept(listener, nullptr, nullptr));
}

ssize_t send(int socket, const void* data, std::size_t bytes) {
#if defined(MSG_NOSIGNAL)
    return ::send(socket, data, bytes, MSG_NOSIGNAL);
#else
    return ::send(socket, data, bytes, 0);  // prepared() has set SO_NOSIGPIPE
#endif
}

ReceivedSignal wait_for_signal(const sigset_t& set, std::optional<std::chrono::nanoseconds> timeout) {
    using Clock = std::chrono::steady_clock;
    if (timeout) {
        // macOS has no sigtimedwait(), so pending signals are looked for every few milliseconds.
        constexpr std::chrono::milliseconds interval{5};
        const Clock::time_point deadline = Clock::now() + std::chrono::ceil<Clock::duration>(*timeout);
        const auto any_is_pending = [&set] {
            sigset_t pending;
            ::sigpending(&pending);
            for (int number = 1; number < NSIG; ++number)
                if (sigismember(&set, number) == 1 && sigismember(&pending, number) == 1) return true;
            return false;
        };
        while (!any_is_pending()) {
            const Clock::duration left = deadline - Clock::now();
            if (left <= Clock::duration::zero()) return {};
            std::this_thread::sleep_for(std::min<Clock::duration>(interval, left));
        }
    }
    int number = 0;
    if (::sigwait(&set, &number) != 0) return {};
    return {.number = number};
}

std::string own_program() {
    Dl_info info{};
    ::dladdr(reinterpret_cast<const void*>(&own_program), &info);
    return info.dli_fname != nullptr ? info.dli_fname : "";
}

void end_with_parent(int) {}

bool is_stopped(pid_t process) {
    siginfo_t change{};
    return ::waitid(P_PID, static_cast<id_t>(process), &change, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
           change.si_pid == process;
}

int usable_cores() {
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

std::size_t resident_bytes() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
#if defined(__APPLE__)
    constexpr std::size_t unit = 1;
#else
    constexpr std::size_t unit = 1024;
#endif
    return static_cast<std::size_t>(usage.ru_maxrss) * unit;
}

std::size_t address_space_bytes() {
    return 0;
}

std::size_t available_bytes() {
    return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
           static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

void request_huge_pages(std::byte*, std::size_t) {}

}  // namespace gradtile::os
