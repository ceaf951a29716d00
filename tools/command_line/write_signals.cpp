#include <gradtile/tools/command_line/write_signals.h>

#include <csignal>

#include <gradtile/core/io/removed_on_signal.h>

namespace gradtile::cli {

void ignore_write_signals() {
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
}

namespace {

void remove_and_end(int number) {
    if (!ends_by_signal(number)) return;
    remove_registered_files();
    std::signal(number, SIG_DFL);
    std::raise(number);
}

}  // namespace

void remove_files_on_signals() {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
        struct sigaction action {};
        if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
        action = {};
        action.sa_handler = remove_and_end;
        sigemptyset(&action.sa_mask);
        ::sigaction(number, &action, nullptr);
    }
}

}  // namespace gradtile::cli
