// The program `gradtile`: parses the command line, runs one command, and reports an error as one line and an
// exit code.
#include <gradtile/core/text/message.h>
#include <gradtile/core/version.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/standard_streams.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/command_line/write_signals.h>

using namespace gradtile;

namespace {

int run(int argc, const char* const* argv) {
    cli::CommandLine program("gradtile", "gradtile trains small transformers, on the CPU or on NVIDIA GPUs.",
                             concat("gradtile ", version()));
    for (const auto add : cli::commands) add(program);
    return program.parse(argc, argv)();
}

}  // namespace

int main(int argc, char** argv) {
    cli::open_missing_streams();
    cli::ignore_write_signals();
    cli::remove_files_on_signals();
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        print_error(error);
        return cli::exit_code_of(error);
    }
}
