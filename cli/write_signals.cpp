#include <gradtile/cli/write_signals.h>

#include <csignal>

namespace gradtile::cli {

void ignore_write_signals() {
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace gradtile::cli
