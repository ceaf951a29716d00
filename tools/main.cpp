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
    cli::add_train(program);
    cli::add_sample(program);
    cli::add_chat(program);
    cli::add_eval(program);
    cli::add_gradcheck(program);
    cli::add_lab(program);
    cli::add_inspect(program);
    cli::add_report(program);
    cli::add_import(program);
    cli::add_export(program);
    cli::add_corpus(program);
    cli::add_tokenizer(program);
    cli::add_tokenize(program);
    cli::add_bench(program);
    cli::add_plan(program);
    cli::add_models(program);
    cli::add_doctor(program);
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
