#pragma once
/// The longest token in a byte-level BPE tokenizer.
#include <cstddef>

namespace gradtile {

/// The longest token that is read or trained. Known vocabularies have no longer tokens, and two computations
/// take longer with longer tokens: finding a token's parts by tiktoken's rule, and searching a text for added
/// tokens.
constexpr std::size_t max_token_bytes = 2048;

}  // namespace gradtile
