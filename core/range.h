#pragma once
/// Ranges of allowed values, and size products with an overflow check.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <ostream>

#include <gradtile/core/check.h>

namespace gradtile {

/// The interval from `min` to `max`. A bound is allowed unless it is open.
struct Range {
    double min, max;
    bool min_is_open = false, max_is_open = false;

    /// False for NaN.
    bool contains(double value) const {
        return (min_is_open ? value > min : value >= min) && (max_is_open ? value < max : value <= max);
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

namespace setting_limits {
inline constexpr double max_steps = 1e12;
inline constexpr Range positive{.min = 0, .max = 1e30, .min_is_open = true},
    proper_fraction{.min = 0, .max = 1, .max_is_open = true};
inline constexpr Range any_value{0, 0};  ///< the range for settings that are not numbers
}  // namespace setting_limits

/// The product of sizes >= 0; nullopt if the product is larger than `max`.
inline std::optional<std::int64_t> product_up_to(std::int64_t max,
                                                 std::initializer_list<std::int64_t> sizes) {
    if (std::ranges::find(sizes, 0) != sizes.end()) return 0;
    std::int64_t product = 1;
    for (const std::int64_t size : sizes)
        if (__builtin_mul_overflow(product, size, &product)) return std::nullopt;
    return product <= max ? std::optional(product) : std::nullopt;
}

}  // namespace gradtile
