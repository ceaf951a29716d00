#include <gradtile/core/range.h>

#include <cmath>
#include <iomanip>
#include <sstream>

namespace gradtile {
namespace {

std::string text_of(double bound) {
    std::ostringstream out;
    if (bound == std::floor(bound) && std::abs(bound) < 1e15) {
        out << std::fixed << std::setprecision(0);
    } else {
        out << std::setprecision(3);
    }
    out << bound;
    return out.str();
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Range& range) {
    const std::string min = text_of(range.min), max = text_of(range.max);
    if (!range.min_is_open && !range.max_is_open) return out << min << " to " << max;
    return out << (range.min_is_open ? "more than " + min : min + " or more")
               << (range.max_is_open ? ", less than " : ", at most ") << max;
}

void detail::refuse_value(const char* name, const char* value, const Range& range,
                          std::source_location where) {
    throw Error(concat(name, ": ", value, "; expected ", range), where);
}

}  // namespace gradtile
