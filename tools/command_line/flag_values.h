#pragma once
/// Flag value types: how they are parsed, and how --help shows them.
#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

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

/// Values separated by commas.
template <class T>
void parse_value(std::vector<T>& values, const std::string& text, const std::string& flag) {
    values.clear();
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        parse_value(values.emplace_back(), text.substr(begin, end - begin), flag);
        begin = end + 1;
    }
}
template <class T>
constexpr bool is_list = false;
template <class T>
constexpr bool is_list<std::vector<T>> = true;

/// The word after the flag in --help.
template <class T>
const char* type_name() {
    if constexpr (std::is_integral_v<T>) return "INTEGER";
    if constexpr (std::is_floating_point_v<T>) return "NUMBER";
    if constexpr (NamedEnum<T>) return "NAME";
    if constexpr (is_list<T>) return "LIST";
    return "TEXT";
}

/// A value's text in --help.
template <class T>
std::string text_of(const T& value) {
    if constexpr (NamedEnum<T>) {
        return std::string(name_of(value));
    } else if constexpr (is_list<T>) {
        std::string list;
        for (const auto& element : value) list += concat(list.empty() ? "" : ",", element);
        return list;
    } else {
        return concat(value);
    }
}

}  // namespace gradtile::cli
