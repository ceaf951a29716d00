#pragma once
/// Cuts text into pieces. Byte pairs are merged only within a piece.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>
#include <gradtile/train/tokenizers/internal/regex.h>

namespace gradtile {

/// Returns where the valid UTF-8 that begins at `from` ends.
std::size_t end_of_utf8(std::string_view text, std::size_t from);
/// Returns where the invalid bytes that begin at `from` end: the first position where a valid UTF-8 character
/// begins.
std::size_t end_of_invalid_utf8(std::string_view text, std::size_t from);

/// A tokenizer's patterns. The object is immutable.
class TextSplitter {
  public:
    /// Throws Error for a pattern that is not supported, and for more than max_patterns patterns: each one
    /// takes a recursion level.
    TextSplitter(const std::vector<SplitPattern>& patterns, std::string_view source) {
        check(patterns.size() <= max_patterns, source, ": ", patterns.size(),
              " patterns that cut text (pre_tokenizer); expected at most ", max_patterns);
        for (const SplitPattern& pattern : patterns) {
            patterns_.push_back(std::make_unique<Regex>(pattern.regex, source));
            must_cover_.push_back(pattern.must_cover);
        }
    }

    static constexpr std::size_t max_patterns = 64;  // the tokenizers in use have at most four

    std::size_t patterns() const { return patterns_.size(); }

    /// One thread's state while it cuts texts.
    class Cutter {
      public:
        explicit Cutter(const TextSplitter& splitter) : splitter_(splitter) {
            for (const auto& pattern : splitter.patterns_) matchers_.emplace_back(*pattern);
        }

        /// Returns the last piece since the last call that a pattern had to cover but did not; empty if there
        /// is none.
        std::string_view take_gap() { return std::exchange(gap_, {}); }

        /// Calls visit(piece) for a text's pieces in order. The text need not be valid UTF-8.
        template <class Visit>
        void cut(std::string_view text, Visit&& visit) {
            for (std::size_t position = 0; position < text.size();) {
                const std::size_t end = end_of_utf8(text, position);
                if (end > position) cut_utf8(text.substr(position, end - position), 0, visit);
                position = end_of_invalid_utf8(text, end);
                if (position > end) visit(text.substr(end, position - end));
            }
        }

        /// Cuts valid UTF-8 up to the first pattern's first match at or after `from`: calls visit(piece) for
        /// each piece, and returns the match's end.
        template <class Visit>
        std::size_t cut_next(std::string_view text, std::size_t from, Visit&& visit) {
            return next(text, from, 0, visit);
        }

        /// Like cut_next(), but for the first part of a longer text and a splitter with one pattern. Returns
        /// nullopt, without calling visit, if the text after `part` could change the pieces.
        template <class Visit>
        std::optional<std::size_t> cut_next_in_part(std::string_view part, std::size_t from, Visit&& visit) {
            const std::optional<Regex::Range> match = matchers_.front().find_in_part(part, from);
            if (!match) return std::nullopt;
            if (match->begin > from) visit(gap(part.substr(from, match->begin - from), 0));
            visit(part.substr(match->begin, match->end - match->begin));
            return match->end;
        }

      private:
        template <class Visit>
        void cut_utf8(std::string_view text, std::size_t level, Visit& visit) {
            if (level == matchers_.size()) return visit(text);
            for (std::size_t position = 0; position < text.size();)
                position = next(text, position, level, visit);
        }

        template <class Visit>
        std::size_t next(std::string_view text, std::size_t from, std::size_t level, Visit& visit) {
            if (level == matchers_.size()) {  // all patterns have been applied
                visit(text.substr(from));
                return text.size();
            }
            const Regex::Range match = matchers_[level].find(text, from);
            if (match.begin > from)
                cut_utf8(gap(text.substr(from, match.begin - from), level), level + 1, visit);
            if (match.end > match.begin)
                cut_utf8(text.substr(match.begin, match.end - match.begin), level + 1, visit);
            return match.end;
        }

        /// Notes a piece between two matches of the same pattern.
        std::string_view gap(std::string_view piece, std::size_t level) {
            if (splitter_.must_cover_[level]) gap_ = piece;
            return piece;
        }

        const TextSplitter& splitter_;
        std::vector<Regex::Matcher> matchers_;
        std::string_view gap_;
    };

  private:
    std::vector<std::unique_ptr<Regex>> patterns_;
    std::vector<bool> must_cover_;  // by pattern; see SplitPattern
};

}  // namespace gradtile
