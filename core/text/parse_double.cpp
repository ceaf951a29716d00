#include <gradtile/core/text/parse_double.h>

#include <locale.h>
#include <stdlib.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

#include <cctype>
#include <cerrno>
#include <cmath>
#include <string>

namespace gradtile {

std::from_chars_result parse_double(const char* begin, const char* end, double& value) {
    // strtod() also accepts spaces, a plus sign and hexadecimal digits, and would read beyond `end`.
    const std::string text(begin, end);
    const std::size_t first = text.starts_with('-') ? 1 : 0;
    const bool is_number =
        first < text.size() && (std::isalnum(static_cast<unsigned char>(text[first])) || text[first] == '.');
    if (!is_number) return {begin, std::errc::invalid_argument};
    if (text.size() > first + 1 && text[first] == '0' && (text[first + 1] | 0x20) == 'x') {
        value = first == 1 ? -0.0 : 0.0;
        return {begin + first + 1, std::errc()};
    }
    static const locale_t with_point = ::newlocale(LC_NUMERIC_MASK, "C", nullptr);
    char* stop = nullptr;
    errno = 0;
    const double number = ::strtod_l(text.c_str(), &stop, with_point);
    if (stop == text.c_str()) return {begin, std::errc::invalid_argument};
    const char* const after = begin + (stop - text.c_str());
    // strtod() also sets ERANGE for numbers that are representable, but denormal.
    if (errno == ERANGE && (std::isinf(number) || number == 0))
        return {after, std::errc::result_out_of_range};
    value = number;
    return {after, std::errc()};
}

}  // namespace gradtile
