// Regular expressions for BPE tokenizers in a build without PCRE2: each use throws an Error.
#include <gradtile/core/check.h>
#include <gradtile/train/tokenizers/internal/regex.h>

namespace gradtile {

struct Regex::Code {};
struct Regex::Matcher::State {};

Regex::Regex(const std::string&, std::string_view source) {
    throw Error(concat(source,
                       ": BPE tokenizers need PCRE2, which was not there when gradtile was built "
                       "(apt-get install libpcre2-dev, then build again)"));
}
Regex::~Regex() = default;
Regex::Matcher::Matcher(const Regex&) {}
Regex::Matcher::~Matcher() = default;
Regex::Matcher::Matcher(Matcher&&) noexcept = default;
Regex::Range Regex::Matcher::find(std::string_view text, std::size_t) {
    return {text.size(), text.size()};
}
std::optional<Regex::Range> Regex::Matcher::find_in_part(std::string_view, std::size_t) {
    return std::nullopt;
}

}  // namespace gradtile
