#pragma once
/// Unicode normalization and lowercase, computed by utf8proc. The library is loaded at the first use.
#include <string>
#include <string_view>

#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>

namespace gradtile {

/// Throws Error that begins with `source` if the build has no utf8proc, or if the library cannot be loaded.
void require_unicode_library(std::string_view source);

/// Returns the text in a normalization form. Bytes that are not UTF-8 remain as they are.
std::string normalized_unicode(std::string_view text, UnicodeForm form);
std::string lowercase_unicode(std::string_view text);

}  // namespace gradtile
