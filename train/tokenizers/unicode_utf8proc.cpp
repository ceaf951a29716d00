#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/core/shared_library.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/core/text/with_source.h>
#include <gradtile/train/tokenizers/internal/text_splitter.h>
#include <gradtile/train/tokenizers/internal/unicode.h>

namespace gradtile {
namespace {

/// utf8proc's functions. The library is loaded, not linked: only tokenizers with a normalizer need it.
struct Utf8procLibrary {
    decltype(&utf8proc_decompose_char) decompose = nullptr;
    decltype(&utf8proc_get_property) property = nullptr;
    decltype(&utf8proc_normalize_utf32) normalize = nullptr;
    decltype(&utf8proc_tolower) to_lower = nullptr;

    Utf8procLibrary() {
        const SharedLibrary library("tokenizer's normalizer", {"libutf8proc.so.3", "libutf8proc.so.2"},
                                    "apt-get install libutf8proc-dev");
        library.find("utf8proc_decompose_char", decompose);
        library.find("utf8proc_get_property", property);
        library.find("utf8proc_normalize_utf32", normalize);
        library.find("utf8proc_tolower", to_lower);
    }
};

const Utf8procLibrary& utf8proc() {
    static const Utf8procLibrary library;
    return library;
}

utf8proc_option_t options_of(UnicodeForm form) {
    const bool composes = form == UnicodeForm::nfc || form == UnicodeForm::nfkc;
    const bool is_compatible = form == UnicodeForm::nfkc || form == UnicodeForm::nfkd;
    return static_cast<utf8proc_option_t>(UTF8PROC_STABLE |
                                          (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                          (is_compatible ? UTF8PROC_COMPAT : 0));
}

bool is_ascii(char c) {
    return static_cast<unsigned char>(c) < 0x80;
}

/// Normalizes valid UTF-8 texts. An object keeps the memory for code points from text to text.
class UnicodeNormalizer {
  public:
    explicit UnicodeNormalizer(UnicodeForm form) : options_(options_of(form)) {}

    void append(std::string& out, std::string_view text) {
        code_points_.clear();
        for (std::size_t place = 0; place < text.size();) {
            const CodePoint point = decode_utf8(text, place);
            decompose(point.value);
            place += static_cast<std::size_t>(point.length);
        }
        order_marks();
        const auto count = utf8proc().normalize(code_points_.data(), std::ssize(code_points_), options_);
        check(count >= 0, "tokenizer: utf8proc refuses a text of ", text.size(), " bytes (error ", count,
              ")");
        for (const utf8proc_int32_t point : std::span(code_points_).first(static_cast<std::size_t>(count)))
            append_utf8(out, static_cast<char32_t>(point));
    }

  private:
    void decompose(char32_t point) {
        std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition, of U+FDFA, has 18
        int boundary = 0;                          // not used without UTF8PROC_CHARBOUND
        const utf8proc_ssize_t count = utf8proc().decompose(
            static_cast<utf8proc_int32_t>(point), parts.data(), std::ssize(parts), options_, &boundary);
        check(count >= 0 && count <= std::ssize(parts), "tokenizer: utf8proc refuses code point ",
              static_cast<std::uint32_t>(point), " (error ", count, ")");
        code_points_.insert(code_points_.end(), parts.begin(), parts.begin() + count);
    }
    static int combining_class(utf8proc_int32_t point) { return utf8proc().property(point)->combining_class; }
    /// Puts each run of combining marks in canonical order. utf8proc_decompose() does so, too, but in a time
    /// that grows with the square of the run's length.
    void order_marks() {
        for (auto begin = code_points_.begin(); begin != code_points_.end();) {
            if (*begin < 0x300 || combining_class(*begin) == 0) {  // U+0300 is the first mark
                ++begin;
                continue;
            }
            const auto end = std::find_if(begin, code_points_.end(),
                                          [](auto point) { return combining_class(point) == 0; });
            if (end - begin > 1) std::ranges::stable_sort(begin, end, {}, combining_class);
            begin = end;
        }
    }

    utf8proc_option_t options_;
    std::vector<utf8proc_int32_t> code_points_;
};

}  // namespace

void require_unicode_library(std::string_view source) {
    with_source(source, [] { utf8proc(); });
}

std::string normalized_unicode(std::string_view text, UnicodeForm form) {
    UnicodeNormalizer normalizer(form);
    std::string out;
    out.reserve(text.size());
    for (std::size_t position = 0; position < text.size();) {
        std::size_t begin = position;
        while (begin < text.size() && is_ascii(text[begin])) ++begin;
        // The last ASCII character may combine with the marks after it, the characters before it do not.
        if (begin < text.size() && begin > position) --begin;
        out += text.substr(position, begin - position);
        std::size_t end = std::min(begin + 1, text.size());
        while (end < text.size() && !is_ascii(text[end])) ++end;
        for (std::size_t run = begin; run < end;) {
            const std::size_t valid = end_of_utf8(text.substr(0, end), run);
            normalizer.append(out, text.substr(run, valid - run));
            run = end_of_invalid_utf8(text.substr(0, end), valid);
            out += text.substr(valid, run - valid);
        }
        position = end;
    }
    return out;
}

std::string lowercase_unicode(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (std::size_t position = 0; position < text.size();) {
        const char first = text[position];
        const CodePoint point =
            is_ascii(first) ? CodePoint{static_cast<unsigned char>(first), 1} : decode_utf8(text, position);
        if (point.length == 0) {
            out += first;
        } else if (point.value < 0x80) {
            out += static_cast<char>(first >= 'A' && first <= 'Z' ? first + ('a' - 'A') : first);
        } else if (point.value == 0x130) {  // the only character whose lowercase has two: i and a dot
            out += "i\u0307";
        } else {
            append_utf8(
                out, static_cast<char32_t>(utf8proc().to_lower(static_cast<utf8proc_int32_t>(point.value))));
        }
        position += static_cast<std::size_t>(std::max(point.length, 1));
    }
    return out;
}

}  // namespace gradtile
