// The program `gradtile`: parses the command line, runs one command, and reports an error as one line and an
// exit code.
#include <signal.h>

#include <gradtile/core/io/removed_on_signal.h>
#include <gradtile/core/text/message.h>
#include <gradtile/core/version.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/standard_streams.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/train/run/stop_signals.h>

using namespace gradtile;

namespace {

/// A write to a pipe without a reader, or beyond the file size limit (ulimit -f), then fails with an error,
/// like a write to a full disk. The launcher restores the default actions in its children.
void ignore_write_signals() {
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGXFSZ, SIG_IGN);
}

void remove_and_end(int number) {
    if (!ends_by_signal(number)) return;
    remove_registered_files();
    ::signal(number, SIG_DFL);
    ::raise(number);
}

/// Makes SIGINT, SIGTERM and SIGHUP remove the files that are not finished before they end the process as
/// usual. Signals that a shell or nohup ignores stay ignored.
void remove_files_on_signals() {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
        if (is_ignored(number)) continue;
        struct sigaction action {};
        action.sa_handler = remove_and_end;
        sigemptyset(&action.sa_mask);
        ::sigaction(number, &action, nullptr);
    }
}

int run(int argc, const char* const* argv) {
    cli::CommandLine program("gradtile", "gradtile trains small transformers, on the CPU or on NVIDIA GPUs.",
                             concat("gradtile ", version()));
    for (const auto add : cli::commands) add(program);
    return program.parse(argc, argv)();
}

}  // namespace

int main(int argc, char** argv) {
    cli::open_missing_streams();
    ignore_write_signals();
    remove_files_on_signals();
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        print_error(error);
        return cli::exit_code_of(error);
    }
}
