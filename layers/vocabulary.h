#pragma once
/// The padding of matrices with one row per token, and the id that is not a token.
#include <cstdint>

namespace gradtile {

/// A matrix [V,C] is padded with rows of zeros, so that the number of rows is a multiple of this number.
/// Without padding, a vocabulary of odd size (GPT-2: 50257) makes tensor-core products on a GPU up to seven
/// times slower.
inline constexpr std::int64_t vocabulary_multiple = 64;

/// A target with this value does not contribute to the loss.
inline constexpr std::int32_t ignored_target = -1;

}  // namespace gradtile
