#pragma once
/// Ranges for a run's settings.
#include <cstddef>
#include <cstdint>

#include <gradtile/core/range.h>

namespace gradtile::setting_limits {

inline constexpr double max_steps = 1e12, max_sequences = 1 << 30, max_mebibytes = double{1LL << 40};
inline constexpr std::size_t max_sample_prompt_bytes = 1000;
inline constexpr Range positive{.min = 0, .max = 1e30, .min_is_open = true},
    proper_fraction{.min = 0, .max = 1, .max_is_open = true};
inline constexpr Range any_value{0, 0};  ///< the range for settings that are not numbers

}  // namespace gradtile::setting_limits
