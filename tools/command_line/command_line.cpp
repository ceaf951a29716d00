#include <gradtile/tools/command_line/command_line.h>

#include <algorithm>
#include <iostream>
#include <sstream>
#include <vector>

#include <CLI/CLI.hpp>

#include <gradtile/core/text/nearest_name.h>
#include <gradtile/tools/command_line/standard_streams.h>
#include <gradtile/tools/command_line/usage_error.h>

namespace gradtile::cli {
namespace {

std::string without_dashes(const std::string& flag) {
    return flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
}

/// The innermost command that was parsed, or the program itself.
CLI::App& recognised_command(CLI::App& program) {
    const std::vector<CLI::App*> parsed = program.get_subcommands();
    return parsed.empty() ? program : recognised_command(*parsed.front());
}

/// "gradtile train", or "gradtile" when no command was parsed.
std::string command_line_of(const CLI::App& command) {
    const CLI::App* parent = command.get_parent();
    return parent == nullptr ? command.get_name() : concat(command_line_of(*parent), " ", command.get_name());
}

/// Error message for an unknown argument, with the nearest known name.
std::string unknown_argument(CLI::App& program) {
    CLI::App& place = recognised_command(program);
    const std::vector<std::string> extras = program.remaining(/*recurse=*/true);
    const std::string typed = extras.empty() ? "" : extras.front().substr(0, extras.front().find('='));
    std::vector<std::string> known;
    if (typed.starts_with('-')) {
        for (const CLI::Option* option : place.get_options())
            for (const std::string& name : option->get_lnames()) known.push_back(name);
        return concat("unknown flag ", typed, " of ", place.get_name(),
                      did_you_mean(without_dashes(typed), known, "--", ""), "; see ", command_line_of(place),
                      " --help");
    }
    for (const CLI::App* command : place.get_subcommands([](const CLI::App*) { return true; }))
        known.push_back(command->get_name());
    if (known.empty()) return concat("unexpected argument '", typed, "' of ", place.get_name());
    return concat("unknown command '", typed, "'", did_you_mean(typed, known), "; see ",
                  command_line_of(place), " --help");
}

/// The option of a flag "--name". CLI11's get_option() allocates in functions that must not throw, so a lack
/// of memory there would end the process.
CLI::Option& option_of(CLI::App& parser, const std::string& flag) {
    for (CLI::Option* const option : parser.get_options())
        if (std::ranges::count(option->get_lnames(), std::string_view(flag).substr(2)) > 0) return *option;
    throw Error(concat("no flag ", flag));
}

/// Refuses an empty argument that is required or has no flag, which is always a path: it is usually a
/// variable that a script forgot to set.
void check_required_paths(const CLI::App& command) {
    for (const CLI::Option* const option : command.get_options()) {
        if (!option->get_required() && !option->get_positional()) continue;
        for (const std::string& value : option->results())
            check(!value.empty(), option->get_name(), " '': expected a path");
    }
}

/// Returns an action that, with Output::result, fails when standard output cannot be written. If the pipe is
/// closed, it fails without a message.
Action with_checked_output(Action action, Output output = Output::result) {
    return [action = std::move(action), output] {
        try {
            const int exit_code = action();
            if (output == Output::result) check_output();
            return exit_code;
        } catch (const BrokenPipe&) {
            return exit_failed;
        }
    };
}

constexpr std::size_t help_width = 80, help_column = 34;

/// Wraps `text` into lines of at most help_width characters. The first line begins with `line`; all others
/// begin with `indent` blanks.
std::string wrapped(const std::string& text, std::size_t indent, std::string line = {}) {
    std::string lines;
    std::istringstream words(text);
    bool is_empty = true;
    for (std::string word; words >> word;) {
        if (!is_empty && line.size() + 1 + word.size() > help_width) {
            lines += line + '\n';
            line = std::string(indent, ' ');
            is_empty = true;
        }
        if (!is_empty) line += ' ';
        line += word;
        is_empty = false;
    }
    return lines + line + '\n';
}

/// Two columns: the flag or command, and its description.
std::string help_row(const std::string& typed, const std::string& text) {
    std::string line = "  " + typed;
    std::string above;
    if (line.size() + 2 > help_column) {
        above = line + '\n';
        line.clear();
    }
    line.resize(help_column, ' ');
    return above + wrapped(text, help_column, line);
}

/// Limits lines to 80 characters and prints a switch as "--bias, --no-bias", where CLI11 would print
/// "--bias,--no-bias{false}".
class HelpFormatter : public CLI::Formatter {
    std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
        std::string names;
        for (const char c : CLI::Formatter::make_option_name(option, is_positional)) {
            if (c == '{') break;
            names += c == ',' ? ", " : std::string(1, c);
        }
        return names;
    }
    std::string make_option(const CLI::Option* option, bool is_positional) const override {
        return help_row(make_option_name(option, is_positional) + make_option_opts(option),
                        make_option_desc(option));
    }
    std::string make_subcommand(const CLI::App* command) const override {
        return help_row(command->get_name(), command->get_description());
    }
    std::string make_description(const CLI::App* command) const override {
        return wrapped(command->get_description(), 0);
    }
};

}  // namespace

void Command::add_positional(const std::string& name, std::string& value, const std::string& help) {
    parser_.add_option(name, value, help)->required();
}

void Command::add_optional_positional(const std::string& name, std::string& value, const std::string& help) {
    parser_.add_option(name, value, help);
}

void Command::add_positionals(const std::string& name, std::vector<std::string>& values,
                              const std::string& help) {
    parser_.add_option(name, values, help)->required();
}

void Command::add_list(const std::string& flag, std::vector<std::string>& values, const std::string& help) {
    parser_.add_option(flag, values, help);
}

void Command::add_text(const std::string& flag, const std::string& help,
                       const std::function<void(const std::string&)>& use, const char* type,
                       const std::string& shown_default) {
    parser_.add_option_function(flag, use, help)->type_name(type)->default_str(shown_default)->take_last();
}

void Command::add_path(const std::string& flag, std::string& path, const std::string& help,
                       const char* expected) {
    add_value<std::string>(flag, help, [flag, &path, expected](const std::string& given) {
        check(!given.empty(), flag, " '': expected ", expected);
        path = given;
    });
}

void Command::show_default(const std::string& flag, const std::string& shown_default) {
    option_of(parser_, flag).default_str(shown_default);
}

void Command::show_help(const std::string& flag, const std::string& help) {
    option_of(parser_, flag).description(help);
}

void Command::require(const std::string& flag) {
    option_of(parser_, flag).required();
}

void Command::add_switch(const std::string& flag, bool& value, const std::string& help) {
    parser_.add_flag(flag, value, help);
}

void Command::add_switch(const std::string& flag, const std::string& help, std::function<void(bool)> use) {
    const std::string opposite = "--no-" + without_dashes(flag);
    const auto use_last = [flag, opposite, use = std::move(use)](std::int64_t sign) {
        check(sign >= -1 && sign <= 1, flag, ": expected ", flag, " or ",
              opposite);  // CLI11 has 0 or -1 for no
        use(sign > 0);
    };
    parser_.add_flag_function(concat(flag, ",!", opposite), use_last, help)->take_last();
}

Command Command::add_command(const std::string& name, const std::string& help) {
    parser_.require_subcommand(0, 1);
    return {*parser_.add_subcommand(name, help), chosen_};
}

void Command::set_action(Action action, Output output) {
    action = with_checked_output(std::move(action), output);
    parser_.callback([&chosen = chosen_, action = std::move(action)] { chosen = action; });
}

CommandLine::CommandLine(const std::string& program, const std::string& description, std::string version)
    : parser_(std::make_unique<CLI::App>(description, program)), version_(std::move(version)) {
    parser_->require_subcommand(0, 1);
    parser_->set_version_flag("-V,--version", version_, "Print the version");
    parser_->set_help_flag("-h,--help", "Print this help");
    parser_->formatter(std::make_shared<HelpFormatter>());
}
CommandLine::~CommandLine() = default;

Command CommandLine::add_command(const std::string& name, const std::string& help) {
    return {*parser_->add_subcommand(name, help), chosen_};
}

Action CommandLine::parse(int argc, const char* const* argv) {
    // Accepts spellings that are common in other programs. `help COMMAND` is parsed as `COMMAND --help`, see
    // below.
    parser_->add_subcommand("help", "Print the help of a command: gradtile help [COMMAND]");
    add_command("version", "Print the version").set_action([this] {
        std::cout << version_ << '\n';
        return 0;
    });
    std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
    arguments_ = arguments;
    if (!arguments.empty() && arguments.front() == "help") {
        arguments.erase(arguments.begin());
        arguments.emplace_back("--help");
    }
    try {
        parser_->parse(std::vector<std::string>(arguments.rbegin(),
                                                arguments.rend()));  // CLI11 expects the reverse order
        check_required_paths(recognised_command(*parser_));
    } catch (const CLI::ExtrasError&) {
        throw UsageError(unknown_argument(*parser_));
    } catch (const CLI::Success& help) {
        // `gradtile trian --help` must report the unknown command instead of the program's help.
        const std::vector<std::string> extras = parser_->remaining(/*recurse=*/true);
        if (!extras.empty() && !extras.front().starts_with('-')) throw UsageError(unknown_argument(*parser_));
        return with_checked_output([this, help] { return parser_->exit(help); });
    } catch (const CLI::ParseError& error) {
        throw UsageError(
            concat(error.what(), "; see ", command_line_of(recognised_command(*parser_)), " --help"));
    } catch (const Error& error) {  // thrown by parse_value()
        throw UsageError(error.what(), error.where());
    }
    if (chosen_) return chosen_;
    const CLI::App& place = recognised_command(*parser_);
    const CLI::App* parent = place.get_parent();
    return with_checked_output([help = place.help(parent == nullptr ? "" : command_line_of(*parent))] {
        std::cout << help;
        return exit_usage;
    });
}

}  // namespace gradtile::cli
