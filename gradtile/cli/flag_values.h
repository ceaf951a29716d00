#pragma once
/// Flags with a value of a type. What cannot be read is refused in one line that names the flag, the value
/// and what was expected; of a flag that was given twice the last value counts.
#include <cstdint>
#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include <gradtile/core/enum_names.h>

namespace gradtile::cli {

/// Throws Error "FLAG: 'TEXT' ...; expected ...".
void parse_value(std::int64_t& value, const std::string& text, const std::string& flag);
void parse_value(std::uint64_t& value, const std::string& text, const std::string& flag);
void parse_value(double& value, const std::string& text, const std::string& flag);
void parse_value(std::string& value, const std::string& text, const std::string& flag);
template <NamedEnum Enum>
void parse_value(Enum& value, const std::string& text, const std::string& flag) {
    value = enum_named<Enum>(text, flag);
}

/// What stands behind the flag in --help.
template <class T>
const char* value_name() {
    if constexpr (std::is_integral_v<T>) return "INTEGER";
    if constexpr (std::is_floating_point_v<T>) return "NUMBER";
    if constexpr (NamedEnum<T>) return "NAME";
    return "TEXT";
}

/// Calls use(value) when the flag is given. The choices of an enumeration are added to the help.
template <class T>
CLI::Option* add_value(CLI::App& command, const std::string& flag, std::string help,
                       std::function<void(const T&)> use) {
    if constexpr (NamedEnum<T>) help += concat(" (", choices_of<T>(), ")");
    const std::function<void(const std::string&)> parse = [flag, use](const std::string& text) {
        T value{};
        parse_value(value, text, flag);
        use(value);
    };
    return command.add_option_function(flag, parse, help)->type_name(value_name<T>())->take_last();
}

/// The flag sets `member`, whose value now is the default that --help shows.
template <class T>
void add_value(CLI::App& command, const std::string& flag, T& member, const std::string& help) {
    CLI::Option* const option =
        add_value<T>(command, flag, help, [&member](const T& value) { member = value; });
    if constexpr (std::is_arithmetic_v<T>) option->default_str(concat(member));
    if constexpr (NamedEnum<T>) option->default_str(std::string(name_of(member)));
}

}  // namespace gradtile::cli
