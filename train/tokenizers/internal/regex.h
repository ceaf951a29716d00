#pragma once
/// Regular expressions in the tokenizer.json and tiktoken dialects. PCRE2 matches them.
///
/// The classes \s, \d, \p{...} follow the Unicode version that the machine's PCRE2 was built with: 14.0 in
/// PCRE2 10.40 to 10.42 (Debian 12, Ubuntu 24.04), 15.0 in 10.43. The library PCRE2 is loaded at the first
/// use.
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace gradtile {

class Regex {
  public:
    /// Compiles a pattern. Throws Error that begins with `source` in three cases: the pattern is wrong; the
    /// pattern uses a construct that means something else in the tokenizers library (see pcre2_pattern.h);
    /// the build has no PCRE2.
    Regex(const std::string& pattern, std::string_view source);
    ~Regex();
    Regex(const Regex&) = delete;
    Regex& operator=(const Regex&) = delete;

    struct Range {
        std::size_t begin = 0, end = 0;
        bool operator==(const Range&) const = default;
    };

    /// One thread's state while it searches with a pattern.
    class Matcher {
      public:
        explicit Matcher(const Regex& regex);
        ~Matcher();
        Matcher(Matcher&& other) noexcept;
        Matcher& operator=(Matcher&&) = delete;

        /// Returns the first match at or after `from` that is not empty; {text.size(), text.size()} when
        /// there is none. `text` is valid UTF-8 and a character starts at `from`. Throws Error when the
        /// search needs more steps than PCRE2's limit.
        Range find(std::string_view text, std::size_t from);

        /// Like find(), but searches in the first part of a longer text. Returns nullopt if the text after
        /// `part` could change the result.
        std::optional<Range> find_in_part(std::string_view part, std::size_t from);

      private:
        int search(std::string_view text, std::size_t from, unsigned options) const;

        struct State;
        std::unique_ptr<State> state_;
    };

  private:
    struct Code;
    std::unique_ptr<Code> code_;
};

}  // namespace gradtile
