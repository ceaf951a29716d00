// The program `gradtile`: parses the command line, runs one command, and turns errors into one line and an
// exit code.
#include <csignal>
#include <iostream>
#include <new>

#include <gradtile/cli/commands.h>
#include <gradtile/core/check.h>
#include <gradtile/train/nearest_name.h>

namespace {

using namespace gradtile;

std::string strip_dashes(const std::string& flag) {
    return flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
}

/// What was not understood, and the known name next to it.
std::string unknown_argument(CLI::App& app) {
    const std::vector<CLI::App*> parsed = app.get_subcommands();
    const CLI::App& place = parsed.empty() ? app : *parsed.front();
    const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
    const std::string typed = extras.empty() ? "" : extras.front().substr(0, extras.front().find('='));
    std::vector<std::string> known;
    if (typed.starts_with('-')) {
        for (const CLI::Option* option : place.get_options())
            for (const std::string& name : option->get_lnames()) known.push_back(name);
        return concat("unknown flag ", typed, " of ", place.get_name(), "; the nearest known one is --",
                      nearest_name(strip_dashes(typed), known));
    }
    if (!parsed.empty()) return concat("unexpected argument '", typed, "' of ", place.get_name());
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
        known.push_back(command->get_name());
    return concat("unknown command '", typed, "'; the nearest known one is '", nearest_name(typed, known),
                  "'");
}

/// "gradtile train", or "gradtile" before a command was recognised.
std::string command_line_of(const CLI::App& app) {
    const std::vector<CLI::App*> parsed = app.get_subcommands();
    return parsed.empty() ? app.get_name() : concat(app.get_name(), " ", parsed.front()->get_name());
}

int refuse(const std::string& message) {
    std::cerr << "gradtile: " << message << '\n';
    return 2;
}

}  // namespace

int main(int argc, char** argv) {
    // A file that may grow no further (ulimit -f) is a failed write like a full disk, not the end.
    std::signal(SIGXFSZ, SIG_IGN);
    CLI::App app{"gradtile trains small transformers, on the CPU or on NVIDIA GPUs.", "gradtile"};
    app.require_subcommand(0, 1);
    app.set_version_flag("--version", "gradtile " GRADTILE_VERSION);
    app.get_formatter()->column_width(34);
    cli::Action chosen;
    cli::add_train(app, chosen);
    cli::add_sample(app, chosen);
    cli::add_eval(app, chosen);
    cli::add_gradcheck(app, chosen);
    cli::add_inspect(app, chosen);
    cli::add_corpus(app, chosen);

    try {
        app.parse(argc, argv);
    } catch (const CLI::ExtrasError&) {
        return refuse(unknown_argument(app));
    } catch (const CLI::Success& help) {
        return app.exit(help);
    } catch (const CLI::ParseError& error) {
        return refuse(concat(error.what(), "; see ", command_line_of(app), " --help"));
    } catch (const Error& error) {
        return refuse(error.what());
    }
    if (!chosen) {
        std::cout << app.help();
        return 2;
    }

    try {
        return chosen();
    } catch (const Error& error) {
        std::cerr << "gradtile: " << error.what() << '\n';
    } catch (const std::bad_alloc&) {
        std::cerr << "gradtile: out of memory\n";
    } catch (const std::exception& error) {
        std::cerr << "gradtile: " << error.what() << '\n';
    }
    return 1;
}
