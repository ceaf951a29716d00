// The program `gradtile`: parses the command line, runs one command, and turns errors into one line and an
// exit code.
#include <csignal>
#include <iostream>
#include <new>

#include <gradtile/cli/commands.h>

using namespace gradtile;

int main(int argc, char** argv) {
    // A file that may grow no further (ulimit -f) is a failed write like a full disk, not the end.
    std::signal(SIGXFSZ, SIG_IGN);
    cli::CommandLine program("gradtile", "gradtile trains small transformers, on the CPU or on NVIDIA GPUs.",
                             "gradtile " GRADTILE_VERSION);
    cli::add_train(program);
    cli::add_sample(program);
    cli::add_eval(program);
    cli::add_gradcheck(program);
    cli::add_inspect(program);
    cli::add_corpus(program);
    cli::add_bench(program);
    cli::add_plan(program);

    int exit_code = 2;  // the command line was not understood
    try {
        const cli::Action chosen = program.parse(argc, argv);
        exit_code = 1;  // the command failed
        return chosen();
    } catch (const std::bad_alloc&) {
        std::cerr << "gradtile: out of memory\n";
    } catch (const std::exception& error) {
        std::cerr << "gradtile: " << error.what() << '\n';
    }
    return exit_code;
}
