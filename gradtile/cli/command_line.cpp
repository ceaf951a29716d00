#include <gradtile/cli/command_line.h>

#include <algorithm>
#include <iostream>
#include <vector>

#include <CLI/CLI.hpp>

#include <gradtile/train/nearest_name.h>

namespace gradtile::cli {
namespace {

std::string without_dashes(const std::string& flag) {
    return flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
}

/// The command that was recognised (of a command's commands, too), or the program itself.
CLI::App& recognised(CLI::App& program) {
    const std::vector<CLI::App*> parsed = program.get_subcommands();
    return parsed.empty() ? program : recognised(*parsed.front());
}

/// What was not understood, and the known name next to it.
std::string unknown_argument(CLI::App& program) {
    CLI::App& place = recognised(program);
    const std::vector<std::string> extras = program.remaining(/*recurse=*/true);
    const std::string typed = extras.empty() ? "" : extras.front().substr(0, extras.front().find('='));
    std::vector<std::string> known;
    if (typed.starts_with('-')) {
        for (const CLI::Option* option : place.get_options())
            for (const std::string& name : option->get_lnames()) known.push_back(name);
        return concat("unknown flag ", typed, " of ", place.get_name(), "; the nearest known one is --",
                      nearest_name(without_dashes(typed), known));
    }
    for (const CLI::App* command : place.get_subcommands([](const CLI::App*) { return true; }))
        known.push_back(command->get_name());
    if (known.empty()) return concat("unexpected argument '", typed, "' of ", place.get_name());
    return concat("unknown command '", typed, "'; the nearest known one is '", nearest_name(typed, known),
                  "'");
}

/// "gradtile train", or "gradtile" before a command was recognised.
std::string command_line_of(const CLI::App& command) {
    const CLI::App* parent = command.get_parent();
    return parent == nullptr ? command.get_name() : concat(command_line_of(*parent), " ", command.get_name());
}

/// "--bias, --no-bias" for a switch, where CLI11 has "--bias,--no-bias{false}".
class HelpFormatter : public CLI::Formatter {
    std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
        std::string names;
        for (const char c : CLI::Formatter::make_option_name(option, is_positional)) {
            if (c == '{') break;
            names += c == ',' ? ", " : std::string(1, c);
        }
        return names;
    }
};

}  // namespace

void Command::add_positional(const std::string& name, std::string& value, const std::string& help) {
    parser_.add_option(name, value, help)->required();
}

void Command::add_text(const std::string& flag, const std::string& help,
                       const std::function<void(const std::string&)>& use, const char* type,
                       const std::string& shown_default) {
    parser_.add_option_function(flag, use, help)->type_name(type)->default_str(shown_default)->take_last();
}

void Command::require(const std::string& flag) {
    parser_.get_option(flag)->required();
}

void Command::add_switch(const std::string& flag, bool& value, const std::string& help) {
    parser_.add_flag(flag, value, help);
}

void Command::add_switch(const std::string& flag, const std::string& help, std::function<void(bool)> use) {
    const std::string opposite = "--no-" + without_dashes(flag);
    const auto use_once = [flag, opposite, use = std::move(use)](std::int64_t count) {
        check(count == 1 || count == -1, flag, ": expected ", flag, " or ", opposite, ", once");
        use(count > 0);
    };
    parser_.add_flag_function(concat(flag, ",!", opposite), use_once, help);
}

Command Command::add_command(const std::string& name, const std::string& help) {
    parser_.require_subcommand(0, 1);
    return {*parser_.add_subcommand(name, help), chosen_};
}

void Command::on_chosen(Action action) {
    parser_.callback([&chosen = chosen_, action = std::move(action)] { chosen = action; });
}

CommandLine::CommandLine(const std::string& program, const std::string& description,
                         const std::string& version)
    : parser_(std::make_unique<CLI::App>(description, program)) {
    parser_->require_subcommand(0, 1);
    parser_->set_version_flag("--version", version);
    parser_->formatter(std::make_shared<HelpFormatter>());
    parser_->get_formatter()->column_width(34);
}
CommandLine::~CommandLine() = default;

Command CommandLine::add_command(const std::string& name, const std::string& help) {
    return {*parser_->add_subcommand(name, help), chosen_};
}

Action CommandLine::parse(int argc, const char* const* argv) {
    try {
        parser_->parse(argc, argv);
    } catch (const CLI::ExtrasError&) {
        throw Error(unknown_argument(*parser_));
    } catch (const CLI::Success& help) {
        return [exit_code = parser_->exit(help)] { return exit_code; };
    } catch (const CLI::ParseError& error) {
        throw Error(concat(error.what(), "; see ", command_line_of(recognised(*parser_)), " --help"));
    }
    if (chosen_) return chosen_;
    const CLI::App& place = recognised(*parser_);
    const CLI::App* parent = place.get_parent();
    return [help = place.help(parent == nullptr ? "" : command_line_of(*parent))] {
        std::cout << help;
        return 2;
    };
}

}  // namespace gradtile::cli
