#pragma once
/// The command line: `gradtile COMMAND [flags]`. Invalid input throws a one-line error with the flag, the
/// value and the expected value. When a flag with a value is repeated, the last one counts. Only
/// command_line.cpp includes the parser (CLI11, header-only templates), so that it is compiled once.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/tools/command_line/flag_values.h>

namespace CLI {
class App;
}

namespace gradtile::cli {

/// Runs the chosen command; returns the exit code.
using Action = std::function<int()>;

enum class Output {
    result,   ///< standard output is the command's result, so a failed write makes the command fail
    progress  ///< the command's results are files; the command itself checks other important output
};

/// One command: its arguments and its action. Arguments are stored while the command line is parsed, so the
/// variables that receive them must live until then.
class Command {
  public:
    /// A required argument without a flag.
    void add_positional(const std::string& name, std::string& value, const std::string& help);

    /// The same for an argument that may be missing.
    void add_optional_positional(const std::string& name, std::string& value, const std::string& help);

    /// One or more arguments without a flag.
    void add_positionals(const std::string& name, std::vector<std::string>& values, const std::string& help);

    /// Calls use(value) when the flag is given. An enumeration's choices are added to the help.
    template <class T>
    void add_value(const std::string& flag, std::string help, std::function<void(const T&)> use) {
        add_value_of_type<T>(flag, std::move(help), std::move(use), "");
    }
    /// Like the function above; --help also shows the default.
    template <class T>
    void add_value(const std::string& flag, std::string help, const T& shown_default,
                   std::function<void(const T&)> use) {
        add_value_of_type<T>(flag, std::move(help), std::move(use), text_of(shown_default));
    }
    /// The flag sets `member`. --help shows the current `member` value as the default.
    template <class T>
    void add_value(const std::string& flag, T& member, std::string help) {
        add_value_of_type<T>(
            flag, std::move(help), [&member](const T& value) { member = value; }, text_of(member));
    }
    /// The same for a member that is empty unless the flag is given, so that --help shows no default.
    template <class T>
    void add_value(const std::string& flag, std::optional<T>& member, std::string help) {
        add_value<T>(flag, std::move(help), [&member](const T& value) { member = value; });
    }
    /// The flag sets `path`. An empty path is refused: it is usually a variable that a script forgot to set.
    void add_path(const std::string& flag, std::string& path, const std::string& help,
                  const char* expected = "a path");

    /// Calls use(values) when the flag is given, with one value or several with commas. Every flag whose
    /// command prints rows for each value is added by this function or the next one.
    template <class T>
    void add_row_values(const std::string& flag, const std::string& help,
                        std::function<void(const std::vector<T>&)> use) {
        add_value<std::vector<T>>(flag, help + "; values with commas give rows for each", std::move(use));
    }
    template <class T>
    void add_row_values(const std::string& flag, std::vector<T>& values, const std::string& help) {
        add_row_values<T>(flag, help, [&values](const std::vector<T>& given) { values = given; });
    }
    /// A flag with one or more values.
    void add_list(const std::string& flag, std::vector<std::string>& values, const std::string& help);
    /// Change the text that --help shows for a flag added earlier.
    void show_default(const std::string& flag, const std::string& shown_default);
    void show_help(const std::string& flag, const std::string& help);
    /// Makes the flag required.
    void require(const std::string& flag);

    /// --flag sets `value` to true.
    void add_switch(const std::string& flag, bool& value, const std::string& help);
    /// --flag and --no-flag: calls use(true or false) when either flag is given.
    void add_switch(const std::string& flag, const std::string& help, std::function<void(bool)> use);

    /// A subcommand: `gradtile bench gemm`.
    Command add_command(const std::string& name, const std::string& help);

    /// Sets the action that runs after the command line was parsed. With Output::result the command fails
    /// when standard output cannot be written.
    void set_action(Action action, Output output = Output::result);

  private:
    friend class CommandLine;
    Command(CLI::App& parser, Action& chosen) : parser_(parser), chosen_(chosen) {}

    template <class T>
    void add_value_of_type(const std::string& flag, std::string help, std::function<void(const T&)> use,
                           const std::string& shown_default) {
        if constexpr (NamedEnum<T>) help += concat(" (", choices_of<T>(), ")");
        const auto parse = [flag, use = std::move(use)](const std::string& text) {
            T value{};
            parse_value(value, text, flag);
            use(value);
        };
        add_text(flag, help, parse, type_name<T>(), shown_default);
    }
    void add_text(const std::string& flag, const std::string& help,
                  const std::function<void(const std::string&)>& use, const char* type,
                  const std::string& shown_default);

    CLI::App& parser_;
    Action& chosen_;
};

class CommandLine {
  public:
    CommandLine(const std::string& program, const std::string& description, std::string version);
    ~CommandLine();

    Command add_command(const std::string& name, const std::string& help);
    /// The chosen command's action, or an action that prints help or version. Throws UsageError for invalid
    /// arguments.
    Action parse(int argc, const char* const* argv);
    /// The arguments of the last parse() in this process, without the program's name.
    static const std::vector<std::string>& arguments() { return arguments_; }

  private:
    std::unique_ptr<CLI::App> parser_;
    std::string version_;
    Action chosen_;
    static inline std::vector<std::string> arguments_;
};

}  // namespace gradtile::cli
