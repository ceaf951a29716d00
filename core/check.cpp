#include <gradtile/core/check.h>

#include <sstream>

namespace gradtile::detail {

std::string concat(std::initializer_list<Part> parts) {
    std::ostringstream out;
    out.exceptions(std::ios::badbit);  // otherwise operator<< hides std::bad_alloc, and the text lacks a part
    for (const Part& part : parts) part.print(out, part.value);
    return out.str();
}

void refuse(std::initializer_list<Part> parts, std::source_location where) {
    throw Error(concat(parts), where);
}

}  // namespace gradtile::detail
