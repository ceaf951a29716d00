#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include <gradtile/core/check.h>
#include <gradtile/core/shared_library.h>
#include <gradtile/train/tokenizers/internal/pcre2_pattern.h>
#include <gradtile/train/tokenizers/internal/regex.h>

namespace gradtile {
namespace {

/// The libpcre2-8 functions. The library is loaded, not linked: only BPE tokenizers need it.
struct Pcre2Library {
    decltype(&pcre2_compile_8) compile = nullptr;
    decltype(&pcre2_jit_compile_8) jit_compile = nullptr;
    decltype(&pcre2_code_free_8) code_free = nullptr;
    decltype(&pcre2_match_8) match = nullptr;
    decltype(&pcre2_match_data_create_8) match_data_create = nullptr;
    decltype(&pcre2_match_data_free_8) match_data_free = nullptr;
    decltype(&pcre2_get_ovector_pointer_8) ovector_of = nullptr;
    decltype(&pcre2_get_error_message_8) error_message = nullptr;

    Pcre2Library() {
        const SharedLibrary library("BPE tokenizer", {"libpcre2-8.so.0", "libpcre2-8.so"},
                                    "apt-get install libpcre2-8-0");
        library.find("pcre2_compile_8", compile);
        library.find("pcre2_jit_compile_8", jit_compile);
        library.find("pcre2_code_free_8", code_free);
        library.find("pcre2_match_8", match);
        library.find("pcre2_match_data_create_8", match_data_create);
        library.find("pcre2_match_data_free_8", match_data_free);
        library.find("pcre2_get_ovector_pointer_8", ovector_of);
        library.find("pcre2_get_error_message_8", error_message);
    }
};

const Pcre2Library& pcre2() {
    static const Pcre2Library library;
    return library;
}

PCRE2_SPTR units(std::string_view text) {
    return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string pcre2_reason(int error) {
    std::array<PCRE2_UCHAR8, 256> text{};
    pcre2().error_message(error, text.data(), text.size());
    return reinterpret_cast<const char*>(text.data());
}

struct FreePattern {
    void operator()(pcre2_code_8* code) const { pcre2().code_free(code); }
};
using PatternHandle = std::unique_ptr<pcre2_code_8, FreePattern>;

/// Compiles a pattern. If the pattern is wrong, returns null and sets `error` and `offset`.
PatternHandle compiled(const std::string& pattern, int& error, PCRE2_SIZE& offset) {
    return PatternHandle(
        pcre2().compile(units(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
}

bool is_script_of_pcre2(const std::string& name) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    return compiled(concat("\\p{sc:", name, '}'), error, offset) != nullptr;
}

}  // namespace

struct Regex::Code {
    std::string source, pattern;
    PatternHandle handle;
};

Regex::Regex(const std::string& pattern, std::string_view source)
    : code_(std::make_unique<Code>(Code{std::string(source), pattern, nullptr})) {
    constexpr std::size_t max_pattern_bytes = 8192;  // the longest patterns in use have a few hundred bytes
    check(pattern.size() <= max_pattern_bytes, source, ": a pattern of ", pattern.size(),
          " bytes; expected at most ", max_pattern_bytes);
    const std::string translated = pcre2_pattern(pattern, source, is_script_of_pcre2);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_->handle = compiled(translated, error, offset);
    check(code_->handle != nullptr, source, ": pattern '", pattern, "': ", pcre2_reason(error));
    // If no machine code can be generated, matching is slower but correct.
    pcre2().jit_compile(code_->handle.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
}
Regex::~Regex() = default;

struct Regex::Matcher::State {
    const Code* code;
    pcre2_match_data_8* data;
};

Regex::Matcher::Matcher(const Regex& regex)
    // The match data has one offset pair, for the whole match. Group offsets are not needed.
    : state_(std::make_unique<State>(State{regex.code_.get(), pcre2().match_data_create(1, nullptr)})) {}
Regex::Matcher::~Matcher() {
    if (state_) pcre2().match_data_free(state_->data);
}
Regex::Matcher::Matcher(Matcher&& other) noexcept = default;

int Regex::Matcher::search(std::string_view text, std::size_t from, unsigned options) const {
    const int found = pcre2().match(state_->code->handle.get(), units(text), text.size(), from,
                                    PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | options, state_->data, nullptr);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH && found != PCRE2_ERROR_PARTIAL)
        throw Error(concat(state_->code->source, ": pattern '", state_->code->pattern,
                           "': ", pcre2_reason(found), " at byte ", from, " of a text"));
    return found;
}

Regex::Range Regex::Matcher::find(std::string_view text, std::size_t from) {
    if (search(text, from, 0) < 0) return {text.size(), text.size()};
    const PCRE2_SIZE* const offsets = pcre2().ovector_of(state_->data);
    return {offsets[0], offsets[1]};
}

std::optional<Regex::Range> Regex::Matcher::find_in_part(std::string_view part, std::size_t from) {
    if (search(part, from, PCRE2_PARTIAL_HARD) < 0) return std::nullopt;
    const PCRE2_SIZE* const offsets = pcre2().ovector_of(state_->data);
    return Range{offsets[0], offsets[1]};
}

}  // namespace gradtile
