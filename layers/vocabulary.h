#pragma once
/// Padding for matrices with one row per token, and the id that is not a token.
#include <cstdint>

namespace gradtile {

/// A matrix [V,C] is padded with zero rows, so that the row count is divisible by this number. Without
/// padding, an odd vocabulary size (GPT-2: 50257) makes tensor-core products on a GPU up to seven times
/// slower.
inline constexpr std::int64_t vocabulary_multiple = 64;

/// A target with this value does not contribute to the loss.
inline constexpr std::int32_t ignored_target = -1;

}  // namespace gradtile
