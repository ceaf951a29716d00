#pragma once
/// INTERNAL. The system calls in which Linux and other POSIX systems differ. operating_system_linux.cpp has
/// Linux's calls; operating_system_posix.cpp has what macOS and POSIX offer instead, and is tested on Linux
/// as well (tests/posix). A negative result is -errno, as in FileSystem.
#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace gradtile::os {

// ---- Files ----

/// Reserves disk space without changing the size. -EOPNOTSUPP if the system or the file system cannot.
int reserve(int file, std::uint64_t bytes);
/// Begins writing a range to the disk; only a hint.
int start_writeback(int file, std::uint64_t offset, std::uint64_t bytes);
/// Returns when a file's or directory's data are on the disk.
int sync(int file);
/// Renames to a name that must not exist. -EINVAL or -ENOSYS if the system or the file system cannot.
int rename_new(const char* from, const char* to);
/// Nanoseconds since 1970.
std::int64_t modification_time(const struct stat& status);
/// Creates an empty file without a name, closed on exec.
int unnamed_file();

// ---- Pipes and sockets: non-blocking, closed on exec ----

int make_pipe(int ends[2]);
/// A TCP socket of the family AF_INET or AF_INET6.
int make_socket(int family);
/// A connected pair of local sockets.
int make_socket_pair(int ends[2]);
/// The next waiting connection; negative if none waits.
int accept_connection(int listener);
/// send(), without SIGPIPE when the other end is closed. Sets errno.
ssize_t send(int socket, const void* data, std::size_t bytes);

// ---- Signals and processes ----

struct ReceivedSignal {
    int number = 0;  ///< 0: none came in time
    bool is_of_kernel = false;
    pid_t sender = 0;             ///< 0: unknown
    bool is_interrupted = false;  ///< the wait ended early, without a signal: the process was stopped
};
/// Takes a signal of `set`, which must be blocked. Without a timeout, waits until one comes.
ReceivedSignal wait_for_signal(const sigset_t& set, std::optional<std::chrono::nanoseconds> timeout = {});

/// The path of the running program, or its name if execvp() finds it by that.
std::string own_program();
/// Makes the system send `signal` to this process when its parent ends. Does nothing where no system call
/// does this.
void end_with_parent(int signal);
/// Whether a signal has stopped the process; false if the system does not say.
bool is_stopped(pid_t process);

// ---- The machine ----

/// The number of cores that this process may use.
int usable_cores();
/// The memory that this process occupies; the most that it has occupied, if the system only knows that.
std::size_t resident_bytes();
/// The size of this process' address space; 0 if the system does not say.
std::size_t address_space_bytes();
/// The memory that programs can still use; the machine's whole memory, if the system only knows that.
std::size_t available_bytes();
/// Requests larger pages for a range; only a hint.
void request_huge_pages(std::byte* data, std::size_t bytes);

}  // namespace gradtile::os
