#pragma once
/// How matrices with a row for each token are laid out, and the one id that is no token's.
#include <cstdint>

namespace gradtile {

/// Rows of a [V,C] matrix are padded with zeros to a multiple of this. A vocabulary is as odd as its
/// tokenizer makes it (GPT-2: 50257), and an odd size makes tensor-core products up to seven times slower on
/// a GPU.
inline constexpr std::int64_t vocabulary_multiple = 64;

/// A target that does not count in the loss.
inline constexpr std::int32_t ignored_target = -1;

}  // namespace gradtile
