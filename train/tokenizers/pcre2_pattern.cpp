#include <gradtile/train/tokenizers/internal/pcre2_pattern.h>

#include <gradtile/core/check.h>
#include <gradtile/core/text/utf8.h>

namespace gradtile {
namespace {

class PatternTranslation {
  public:
    PatternTranslation(std::string_view pattern, std::string_view source,
                       const std::function<bool(const std::string&)>& is_script)
        : pattern_(pattern), source_(source), is_script_(is_script) {}

    std::string run() {
        while (position_ < pattern_.size()) {
            const char c = pattern_[position_];
            if (c == '\\') {
                escape();
            } else if (in_class_) {
                class_character(c);
            } else {
                plain_character(c);
            }
        }
        return std::move(result_);
    }

  private:
    [[noreturn]] void refuse(std::string_view construct) const {
        throw Error(concat(source_, ": pattern '", pattern_, "': ", construct, " is not supported"));
    }

    void copy(std::size_t bytes) {
        result_ += pattern_.substr(position_, bytes);
        position_ += bytes;
    }

    void escape() {
        if (position_ + 1 == pattern_.size()) refuse("a backslash at the end");
        const char c = pattern_[position_ + 1];
        const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (c == 's' || c == 'S') {
            result_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
            position_ += 2;
        } else if (c == 'p' || c == 'P') {
            property();
        } else if (!is_letter || std::string_view("dDrntfxzA").find(c) != std::string_view::npos) {
            copy(2);
        } else {
            refuse(concat('\\', c));
        }
    }

    void property() {
        const std::size_t open = position_ + 2;
        const std::size_t close = pattern_.find('}', open);
        if (open >= pattern_.size() || pattern_[open] != '{' || close == std::string_view::npos)
            return copy(2);  // \pL
        std::string name(pattern_.substr(open + 1, close - open - 1));
        const bool negated = name.starts_with('^');
        if (negated) name.erase(0, 1);
        if (is_script_(name)) name.insert(0, "sc:");
        result_ += concat('\\', pattern_[position_ + 1], negated ? "{^" : "{", name, '}');
        position_ = close + 1;
    }

    void class_character(char c) {
        const bool is_first = position_ == first_in_class_;
        if (c == '[') refuse("a '[' in a character class");
        if (c == '&' && pattern_.substr(position_, 2) == "&&") refuse("'&&' in a character class");
        if (c == ']' && !is_first) in_class_ = false;
        if (c == ']' && is_first) refuse("a ']' at the start of a character class");
        copy(1);
    }

    void plain_character(char c) {
        if (c == '^' || c == '$') refuse(concat("the anchor ", c));
        if (c == '(' && pattern_.substr(position_, 2) == "(*") refuse("(*");
        copy(1);
        if (c != '[') return;
        in_class_ = true;
        if (position_ < pattern_.size() && pattern_[position_] == '^') copy(1);
        first_in_class_ = position_;
    }

    std::string_view pattern_, source_;
    const std::function<bool(const std::string&)>& is_script_;
    std::string result_;
    std::size_t position_ = 0;
    std::size_t first_in_class_ = 0;
    bool in_class_ = false;
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern, std::string_view source,
                          const std::function<bool(const std::string&)>& is_script) {
    check(is_utf8(pattern), source, ": pattern: is not UTF-8");
    check(pattern.find('\0') == std::string_view::npos, source, ": pattern: holds a NUL byte");
    return PatternTranslation(pattern, source, is_script).run();
}

}  // namespace gradtile
