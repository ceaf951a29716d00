#pragma once
/// The command line: `gradtile COMMAND [flags]`. What cannot be understood is refused in one line that names
/// the flag, the value and what was expected; of a flag with a value that is given twice the last one counts.
/// The parser (CLI11, a library of templates) stands behind command_line.cpp, so that it is compiled once.
#include <functional>
#include <memory>
#include <string>

#include <gradtile/cli/flag_values.h>

namespace CLI {
class App;
}

namespace gradtile::cli {

/// What the user asked for; returns the exit code.
using Action = std::function<int()>;

enum class Output {
    result,   ///< what the command is run for: a failed write is a failed command
    progress  ///< results are files; the command itself checks what else matters
};

/// One command: what it takes, and what it does. Arguments are stored while the command line is parsed, so
/// what they are stored in must live until then.
class Command {
  public:
    /// A word without a flag, which the command cannot do without.
    void add_positional(const std::string& name, std::string& value, const std::string& help);

    /// Calls use(value) when the flag is given. The choices of an enumeration are added to the help.
    template <class T>
    void add_value(const std::string& flag, std::string help, std::function<void(const T&)> use) {
        add_value_of_type<T>(flag, std::move(help), std::move(use), "");
    }
    /// The same; --help shows the default.
    template <class T>
    void add_value(const std::string& flag, std::string help, const T& shown_default,
                   std::function<void(const T&)> use) {
        add_value_of_type<T>(flag, std::move(help), std::move(use), text_of(shown_default));
    }
    /// The flag sets `member`, whose value now is the default that --help shows.
    template <class T>
    void add_value(const std::string& flag, T& member, std::string help) {
        add_value_of_type<T>(
            flag, std::move(help), [&member](const T& value) { member = value; }, text_of(member));
    }
    /// Changes what --help shows of a flag that was added before.
    void show_default(const std::string& flag, const std::string& shown_default);
    void show_help(const std::string& flag, const std::string& help);
    /// The command cannot do without this flag.
    void require(const std::string& flag);

    /// --flag makes it true.
    void add_switch(const std::string& flag, bool& value, const std::string& help);
    /// --flag and --no-flag: calls use(true or false) when one of them is given.
    void add_switch(const std::string& flag, const std::string& help, std::function<void(bool)> use);

    /// A command of this command: `gradtile bench gemm`.
    Command add_command(const std::string& name, const std::string& help);

    /// What the command does once everything is understood. When standard output cannot be written it has
    /// failed, unless `output` says otherwise.
    void on_chosen(Action action, Output output = Output::result);

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
    /// The chosen command's action; for --help and --version, or without a command, one that prints them.
    /// Throws UsageError when the arguments are not understood.
    Action parse(int argc, const char* const* argv);

  private:
    std::unique_ptr<CLI::App> parser_;
    std::string version_;
    Action chosen_;
};

}  // namespace gradtile::cli
