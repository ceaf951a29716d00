#include <gradtile/tools/command_line/flag_values.h>

#include <charconv>

#include <gradtile/core/text/parse_double.h>

namespace gradtile::cli {
namespace {

std::from_chars_result parse(const char* begin, const char* end, double& value) {
    return parse_double(begin, end, value);
}
template <class Integer>
std::from_chars_result parse(const char* begin, const char* end, Integer& value) {
    return std::from_chars(begin, end, value);
}

/// Parses the whole text as one number in Number's range.
template <class Number>
void parse_number(Number& value, const std::string& text, const std::string& flag, const char* expected) {
    const char* const begin = text.data() + (text.starts_with('+') ? 1 : 0);
    const char* const end = text.data() + text.size();
    const auto [stop, error] = parse(begin, end, value);
    check(error != std::errc::result_out_of_range, flag, ": ", text, " is out of range; expected ", expected);
    check(error == std::errc() && stop == end, flag, ": '", text, "' is not ", expected);
}

}  // namespace

void parse_value(std::int64_t& value, const std::string& text, const std::string& flag) {
    parse_number(value, text, flag, "an integer");
}
void parse_value(std::uint64_t& value, const std::string& text, const std::string& flag) {
    parse_number(value, text, flag, "an integer, 0 or more");
}
void parse_value(double& value, const std::string& text, const std::string& flag) {
    parse_number(value, text, flag, "a number");
}
void parse_value(std::string& value, const std::string& text, const std::string&) {
    value = text;
}

}  // namespace gradtile::cli
