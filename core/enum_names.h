#pragma once
/// Enumerations with names, so that a config file, a flag and an error message say the same word.
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include <gradtile/core/check.h>

namespace gradtile {

/// Specialise with `static constexpr std::array names = {std::pair{Enum::value, std::string_view("name")},
/// ...}`.
template <class Enum>
struct EnumNames;

template <class T>
concept NamedEnum = requires {
    EnumNames<T>::names;
};

template <NamedEnum Enum>
constexpr std::string_view name_of(Enum value) {
    for (const auto& [candidate, name] : EnumNames<Enum>::names)
        if (candidate == value) return name;
    return "unknown";
}

/// "cosine, wsd, linear or constant".
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
    for (const auto& [value, name] : EnumNames<Enum>::names)
        if (name == text) return value;
    throw Error(concat(setting, ": '", text, "' is unknown; expected ", choices_of<Enum>()));
}

}  // namespace gradtile
