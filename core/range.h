#pragma once
/// Which values a number may have, and products of sizes that cannot overflow unseen.
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <ostream>

#include <gradtile/core/check.h>

namespace gradtile {

/// From `least` to `most`, both allowed unless they are open.
struct Range {
    double least, most;
    bool least_is_open = false, most_is_open = false;

    /// False for NaN.
    bool contains(double value) const {
        return (least_is_open ? value > least : value >= least) &&
               (most_is_open ? value < most : value <= most);
    }
};
/// "1 to 4096", "more than 0, at most 1", "0 or more, less than 1".
std::ostream& operator<<(std::ostream& out, const Range& range);

namespace detail {
[[noreturn]] void refuse_value(const char* name, const char* value, const Range& range,
                               std::source_location where);
}

/// Throws Error "NAME: VALUE; expected RANGE".
template <class Number>
void check_range(const char* name, Number value, const Range& range,
                 std::source_location where = std::source_location::current()) {
    if (!range.contains(static_cast<double>(value))) [[unlikely]]
        detail::refuse_value(name, concat(value).c_str(), range, where);
}

/// The product of sizes, none of them negative; none when it is above `most`.
inline std::optional<std::int64_t> product_up_to(std::int64_t most,
                                                 std::initializer_list<std::int64_t> sizes) {
    std::int64_t product = 1;
    for (const std::int64_t size : sizes) {
        if (size == 0) return 0;
        if (__builtin_mul_overflow(product, size, &product)) return std::nullopt;
    }
    return product <= most ? std::optional(product) : std::nullopt;
}

}  // namespace gradtile
