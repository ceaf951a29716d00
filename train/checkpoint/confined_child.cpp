#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <fstream>
#include <new>
#include <string_view>

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gradtile/core/check.h>
#include <gradtile/core/io/file_system.h>
#include <gradtile/train/checkpoint/internal/confined_child.h>

namespace gradtile {

namespace {

// Returns the address space of this process in bytes.
std::uint64_t mapped_bytes() {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

void set_limit(int resource, std::uint64_t value) {
    struct rlimit limit {};
    ::getrlimit(resource, &limit);
    limit.rlim_cur = std::min<rlim_t>(value, limit.rlim_max);
    ::setrlimit(resource, &limit);
}

void write_all(int file, std::string_view text) {
    while (!text.empty()) {
        const ssize_t done = ::write(file, text.data(), text.size());
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return;
        text.remove_prefix(static_cast<std::size_t>(done));
    }
}

[[noreturn]] void run_child(int report, const ProcessLimits& limits, const std::function<void()>& work) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // the child ends with its parent
    set_limit(RLIMIT_AS, mapped_bytes() + limits.memory_bytes);
    set_limit(RLIMIT_CPU, limits.cpu_seconds);
    set_limit(RLIMIT_CORE, 0);
    // A crash must end the child, even if this process has handlers for these signals.
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGXCPU}) std::signal(signal, SIG_DFL);
    int exit_code = 1;
    try {
        work();
        exit_code = 0;
    } catch (const std::bad_alloc&) {
        write_all(report, concat("more than ", limits.memory_bytes, " bytes of memory needed"));
    } catch (const std::exception& error) {
        write_all(report, error.what());
    } catch (...) {
        write_all(report, "an unknown error");
    }
    ::_exit(exit_code);  // not exit(), which would flush the parent's buffers and run its destructors
}

std::string read_all(int file) {
    std::string text;
    std::array<char, 4096> piece;
    while (true) {
        const ssize_t done = ::read(file, piece.data(), piece.size());
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return text;
        text.append(piece.data(), static_cast<std::size_t>(done));
    }
}

}  // namespace

ChildOutcome run_confined(const ProcessLimits& limits, const std::function<void()>& work) {
    std::array<int, 2> pipe{};
    check(::pipe(pipe.data()) == 0, "cannot create a pipe: ", describe_errno(errno));
    ChildOutcome outcome;
    outcome.process = ::fork();
    if (outcome.process == 0) {
        ::close(pipe[0]);
        run_child(pipe[1], limits, work);
    }
    const int failure = errno;
    ::close(pipe[1]);
    if (outcome.process > 0) outcome.error = read_all(pipe[0]);
    ::close(pipe[0]);
    check(outcome.process > 0, "cannot create a process: ", describe_errno(failure));
    int status = 0;
    while (::waitpid(outcome.process, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status)) {
        outcome.ended_by = concat("signal ", WTERMSIG(status), " (", ::strsignal(WTERMSIG(status)), ")");
    }
    if (status != 0 && outcome.error.empty()) {
        outcome.error =
            outcome.ended_by.empty() ? concat("exit code ", WEXITSTATUS(status)) : outcome.ended_by;
    }
    return outcome;
}

}  // namespace gradtile
