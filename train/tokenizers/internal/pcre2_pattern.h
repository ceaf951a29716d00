#pragma once
/// Translates patterns of the tokenizers and tiktoken libraries to PCRE2's dialect.
#include <functional>
#include <string>
#include <string_view>

namespace gradtile {

/// Returns the pattern for PCRE2.
///
/// - \s and \S become the Unicode property White_Space. PCRE2's own \s also has U+180E, which lost that
///   property in Unicode 6.3.
/// - \p{Han} and other scripts become \p{sc:Han}. PCRE2's own \p{Han} also has the characters that several
///   scripts share (Script_Extensions).
///
/// `is_script` tells whether PCRE2 knows a script with that name. Throws Error that begins with `source` and
/// names the construct, when the pattern uses a construct that the dialects understand differently: \w, \b,
/// \h and other escapes, sets within sets, and the anchors ^ and $.
std::string pcre2_pattern(std::string_view pattern, std::string_view source,
                          const std::function<bool(const std::string&)>& is_script);

}  // namespace gradtile
