#include <gradtile/tools/command_line/standard_streams.h>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include <gradtile/core/text/message.h>

namespace gradtile::cli {
namespace {

/// Whether standard output is a pipe or socket without a reader.
bool is_pipe_broken() {
    pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
    return ::poll(&output, 1, /*timeout=*/0) == 1 && (output.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace

void open_missing_streams() {
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
        // open() returns the lowest free descriptor, which is `stream`.
        if (::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) != stream) ::_exit(1);
    }
}

void check_output() {
    errno = 0;
    std::cout.flush();
    std::fflush(stdout);
    if (std::ferror(stdout) == 0) return;
    int error_code = errno;
    // An earlier write failed; another write reports the same error.
    if (error_code == 0 && ::write(STDOUT_FILENO, "\n", 1) < 0) error_code = errno;
    if (error_code == EPIPE || is_pipe_broken()) throw BrokenPipe("standard output: its reader has ended");
    throw Error(concat("standard output: ", error_code != 0 ? std::strerror(error_code) : "a write failed"));
}

std::string text_for_output(const std::string& text) {
    if (::isatty(STDOUT_FILENO) != 1) return text;
    return printable(text, {.max_characters = 0, .multiline = true});
}

}  // namespace gradtile::cli
