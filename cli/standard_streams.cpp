#include <gradtile/cli/standard_streams.h>

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

/// Whether the reader of a pipe or socket on standard output is gone.
bool reader_is_gone() {
    pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
    return ::poll(&output, 1, /*timeout=*/0) == 1 && (output.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace

void open_missing_streams() {
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
        // The lowest free descriptor is this one.
        if (::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) != stream) ::_exit(1);
    }
}

void check_output() {
    errno = 0;
    std::cout.flush();
    std::fflush(stdout);
    if (std::ferror(stdout) == 0) return;
    int reason = errno;
    // An earlier write failed; writing again reports the same reason.
    if (reason == 0 && ::write(STDOUT_FILENO, "\n", 1) < 0) reason = errno;
    if (reason == EPIPE || reader_is_gone()) throw ReaderGone("standard output: its reader has ended");
    throw Error(concat("standard output: ", reason != 0 ? std::strerror(reason) : "a write failed"));
}

std::string text_for_output(const std::string& text) {
    if (::isatty(STDOUT_FILENO) != 1) return text;
    return printable(text, {.most = 0, .multiline = true});
}

}  // namespace gradtile::cli
