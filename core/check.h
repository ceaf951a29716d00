#pragma once
/// Errors. Library code throws gradtile::Error with one line that names the operator, the value and what was
/// required; only main() prints and exits.
#include <initializer_list>
#include <ostream>
#include <source_location>
#include <stdexcept>
#include <string>

namespace gradtile {

/// what() is the message for the user, one line; where() is the place in the code that threw.
class Error : public std::runtime_error {
  public:
    explicit Error(const std::string& message, std::source_location where = std::source_location::current())
        : std::runtime_error(message), where_(where) {}
    const std::source_location& where() const noexcept { return where_; }

  private:
    std::source_location where_;
};

namespace detail {
/// A value and its printing function, which is compiled once per type instead of once per message.
struct Part {
    const void* value;
    void (*print)(std::ostream& out, const void* value);
};
template <class T>
Part part(const T& value) {
    return {&value, [](std::ostream& out, const void* it) { out << *static_cast<const T*>(it); }};
}
inline Part part(const char* text) {  // converts string literals of all lengths to one type
    return {text, [](std::ostream& out, const void* it) { out << static_cast<const char*>(it); }};
}
std::string concat(std::initializer_list<Part> parts);
[[noreturn]] void refuse(std::initializer_list<Part> parts, std::source_location where);
}  // namespace detail

/// Concatenates its arguments in the form that operator<< prints.
template <class... Parts>
std::string concat(const Parts&... parts) {
    return detail::concat({detail::part(parts)...});
}

namespace detail {
/// Carries the caller's file and line into a function that also takes a parameter pack.
struct Condition {
    bool holds;
    std::source_location where;
    // NOLINTNEXTLINE(google-explicit-constructor): callers pass a bool, and the conversion adds their
    // location.
    Condition(bool condition, std::source_location location = std::source_location::current())
        : holds(condition), where(location) {}
};
}  // namespace detail

/// Throws Error with the concatenated parts unless the condition holds:
/// check(d <= 256, "attention: head_dim ", d, " is not in 1..256").
template <class... Parts>
void check(detail::Condition condition, const Parts&... parts) {
    if (!condition.holds) [[unlikely]]
        detail::refuse({detail::part(parts)...}, condition.where);
}

}  // namespace gradtile
