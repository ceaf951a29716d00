// The calls of Linux.
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include <gradtile/core/os/internal/operating_system.h>

namespace gradtile::os {
namespace {

int or_errno(int result) {
    return result < 0 ? -errno : result;
}

struct ProcessMemory {
    std::size_t program = 0, resident = 0;
};
ProcessMemory process_memory() {
    ProcessMemory pages;
    std::ifstream("/proc/self/statm") >> pages.program >> pages.resident;
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return {pages.program * page, pages.resident * page};
}

}  // namespace

int reserve(int file, std::uint64_t bytes) {
    // Does not call posix_fallocate, which writes every block if the file system cannot reserve space.
    int result = -EINTR;
    while (result == -EINTR)
        result = or_errno(::fallocate(file, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)));
    return result;
}

int start_writeback(int file, std::uint64_t offset, std::uint64_t bytes) {
    return or_errno(::sync_file_range(file, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                                      SYNC_FILE_RANGE_WRITE));
}

int sync(int file) {
    return or_errno(::fsync(file));
}

int rename_new(const char* from, const char* to) {
    return or_errno(::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE));
}

std::int64_t modification_time(const struct stat& status) {
    return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

int unnamed_file() {
    return or_errno(::memfd_create("gradtile", MFD_CLOEXEC));
}

int make_pipe(int ends[2]) {
    return or_errno(::pipe2(ends, O_CLOEXEC | O_NONBLOCK));
}

int make_socket(int family) {
    return or_errno(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int make_socket_pair(int ends[2]) {
    return or_errno(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
}

int accept_connection(int listener) {
    return or_errno(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

ssize_t send(int socket, const void* data, std::size_t bytes) {
    return ::send(socket, data, bytes, MSG_NOSIGNAL);
}

ReceivedSignal wait_for_signal(const sigset_t& set, std::optional<std::chrono::nanoseconds> timeout) {
    siginfo_t signal{};
    int number = -1;
    if (!timeout) {
        number = ::sigwaitinfo(&set, &signal);
    } else {
        const auto seconds = std::chrono::floor<std::chrono::seconds>(*timeout);
        const timespec time{seconds.count(), (*timeout - seconds).count()};
        number = ::sigtimedwait(&set, &signal, &time);
    }
    if (number < 0) return {.is_interrupted = errno == EINTR};
    return {.number = number, .is_of_kernel = signal.si_code == SI_KERNEL, .sender = signal.si_pid};
}

std::string own_program() {
    return std::filesystem::read_symlink("/proc/self/exe").string();
}

void end_with_parent(int signal) {
    ::prctl(PR_SET_PDEATHSIG, signal);
}

bool is_stopped(pid_t process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string text;
    std::getline(file, text);
    // "PID (NAME) STATE ..."; the name may contain any character.
    const std::size_t name_end = text.rfind(") ");
    return name_end != std::string::npos && text.compare(name_end + 2, 1, "T") == 0;
}

int usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

std::size_t resident_bytes() {
    return process_memory().resident;
}

std::size_t address_space_bytes() {
    return process_memory().program;
}

std::size_t available_bytes() {
    std::ifstream file("/proc/meminfo");  // "MemAvailable: 12345 kB"
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("MemAvailable:")) return std::stoull(line.substr(13)) * 1024;
    return std::numeric_limits<std::size_t>::max();
}

void request_huge_pages(std::byte* data, std::size_t bytes) {
    ::madvise(data, bytes, MADV_HUGEPAGE);
}

}  // namespace gradtile::os
