// Unicode normalization in a build without utf8proc: tokenizers that need it are refused.
#include <gradtile/core/check.h>
#include <gradtile/train/tokenizers/internal/unicode.h>

namespace gradtile {

void require_unicode_library(std::string_view source) {
    throw Error(
        concat(source,
               ": the tokenizer's normalizer needs utf8proc, which was not there when gradtile was built "
               "(apt-get install libutf8proc-dev, then build again)"));
}

std::string normalized_unicode(std::string_view text, UnicodeForm) {
    return std::string(text);
}
std::string lowercase_unicode(std::string_view text) {
    return std::string(text);
}

}  // namespace gradtile
