#pragma once
/// Enumerator names, so that config files, flags and error messages use the same words.
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include <gradtile/core/check.h>

namespace gradtile {

/// Specialise with `static constexpr std::array names = {std::pair{Enum::value, std::string_view("name")},
/// ...}`. The array must list every enumerator in declaration order; the compiler checks this.
template <class Enum>
struct EnumNames;

template <class T>
concept NamedEnum = requires {
    EnumNames<T>::names;
};

/// Returns EnumNames' array `names` from a table of structs that have a member for the enumerator and one for
/// its name.
template <class Traits, std::size_t size, class Enum>
consteval auto names_in_table(const std::array<Traits, size>& table, Enum Traits::*value,
                              std::string_view Traits::*name) {
    std::array<std::pair<Enum, std::string_view>, size> names;
    for (std::size_t i = 0; i < size; ++i) names[i] = {table[i].*value, table[i].*name};
    return names;
}

namespace detail {
/// Whether an enumerator has this value. __PRETTY_FUNCTION__ shows other values as a cast, "(Norm)2".
template <auto value>
consteval bool is_enumerator() {
    const std::string_view function = __PRETTY_FUNCTION__;
    const std::size_t bracket = function.rfind(')');
    return bracket == std::string_view::npos || bracket + 1 == function.size() ||
           function[bracket + 1] < '0' || function[bracket + 1] > '9';
}
}  // namespace detail

template <NamedEnum Enum>
consteval bool names_every_enumerator() {
    constexpr auto& names = EnumNames<Enum>::names;
    for (std::size_t i = 0; i < names.size(); ++i)
        if (static_cast<std::size_t>(names[i].first) != i) return false;
    return !detail::is_enumerator<static_cast<Enum>(names.size())>();
}

template <NamedEnum Enum>
constexpr std::string_view name_of(Enum value) {
    static_assert(names_every_enumerator<Enum>(),
                  "EnumNames lacks an enumerator, or lists them out of order");
    const auto index = static_cast<std::size_t>(value);
    return index < EnumNames<Enum>::names.size() ? EnumNames<Enum>::names[index].second : "unknown";
}

/// Returns all names as a list: "cosine, wsd, linear or constant".
template <NamedEnum Enum>
std::string choices_of() {
    constexpr auto& names = EnumNames<Enum>::names;
    std::string list;
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (i > 0) list += i + 1 == names.size() ? " or " : ", ";
        list += names[i].second;
    }
    return list;
}

/// Throws Error "SETTING: 'TEXT' is unknown; expected a, b or c".
template <NamedEnum Enum>
Enum enum_named(std::string_view text, std::string_view setting) {
    static_assert(names_every_enumerator<Enum>(),
                  "EnumNames lacks an enumerator, or lists them out of order");
    for (const auto& [value, name] : EnumNames<Enum>::names)
        if (name == text) return value;
    throw Error(concat(setting, ": '", text, "' is unknown; expected ", choices_of<Enum>()));
}

}  // namespace gradtile
