#include <gradtile/train/tokenizers/internal/normalizer.h>

#include <algorithm>
#include <memory>

#include <gradtile/core/check.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/train/tokenizers/internal/added_token_finder.h>
#include <gradtile/train/tokenizers/internal/character_map.h>
#include <gradtile/train/tokenizers/internal/unicode.h>

namespace gradtile {
namespace {

using Step = std::function<std::string(std::string_view text)>;

/// SentencePiece's normalizer (Normalizer::Normalize in its source).
class SentencePieceNormalizer {
  public:
    SentencePieceNormalizer(const SentencePieceStep& step, std::string_view source)
        : step_(step), blank_(step.escapes_blanks ? blank_symbol : " ") {
        if (!step.character_map.empty()) map_ = CharacterMap(step.character_map, source);
        for (const std::string& symbol : step_.kept_symbols) kept_.add({.text = symbol});
    }
    SentencePieceNormalizer(const SentencePieceNormalizer&) = delete;  // kept_ refers to step_
    SentencePieceNormalizer& operator=(const SentencePieceNormalizer&) = delete;

    std::string run(std::string_view text) const {
        const bool removes = step_.removes_extra_blanks;
        std::size_t position = 0;
        for (; removes && position < text.size();) {
            const Part part = part_at(text, position);
            if (part.text != " ") break;
            position += part.length;
        }
        std::string out;
        if (position == text.size()) return out;
        out.reserve(text.size() + text.size() / 2);
        if (step_.adds_blank && !step_.blank_at_end) out += blank_;
        for (bool follows_blank = removes; position < text.size();) {
            const Part part = part_at(text, position);
            position += part.length;
            std::string_view rest = part.text;
            while (follows_blank && rest.starts_with(' ')) rest.remove_prefix(1);
            for (const char c : rest) {
                if (c == ' ')
                    out += blank_;
                else
                    out += c;
            }
            if (!rest.empty()) follows_blank = removes && rest.ends_with(' ');
        }
        while (removes && out.ends_with(blank_)) out.resize(out.size() - blank_.size());
        if (step_.adds_blank && step_.blank_at_end) out += blank_;
        return out;
    }

  private:
    struct Part {
        std::size_t length = 0;  // in the text
        std::string_view text{};
    };
    Part part_at(std::string_view text, std::size_t position) const {
        if (const std::size_t kept = kept_.length_at(text, position); kept > 0)
            return {kept, text.substr(position, kept)};
        if (const CharacterMap::Rule rule = map_.longest(text.substr(position)); rule.length > 0)
            return {rule.length, rule.replacement};
        const auto length = static_cast<std::size_t>(decode_utf8(text, position).length);
        return length == 0 ? Part{1, "\uFFFD"} : Part{length, text.substr(position, length)};
    }

    SentencePieceStep step_;
    std::string_view blank_;
    CharacterMap map_;
    AddedTokenFinder kept_;
};

/// Makes a step's function.
struct StepMaker {
    std::string_view source;

    Step operator()(UnicodeForm form) const {
        require_unicode_library(source);
        return [form](std::string_view text) { return normalized_unicode(text, form); };
    }
    Step operator()(const LowercaseStep&) const {
        require_unicode_library(source);
        return lowercase_unicode;
    }
    Step operator()(const PrependStep& step) const {
        check_length(step.text);
        return [step](std::string_view text) {
            return text.empty() ? std::string() : step.text + std::string(text);
        };
    }
    Step operator()(const ReplaceStep& step) const {
        check(!step.from.empty(), source, ": normalizer: Replace has an empty pattern");
        check_length(step.from);
        check_length(step.to);
        return [step](std::string_view text) { return replaced(text, step.from, step.to); };
    }
    Step operator()(const SentencePieceStep& step) const {
        const auto normalizer = std::make_shared<const SentencePieceNormalizer>(step, source);
        return [normalizer](std::string_view text) { return normalizer->run(text); };
    }

  private:
    void check_length(const std::string& text) const {
        check(text.size() <= Normalizer::max_step_bytes, source, ": normalizer: a text of ", text.size(),
              " bytes; expected at most ", Normalizer::max_step_bytes);
    }
};

}  // namespace

Normalizer::Normalizer(const std::vector<NormalizerStep>& steps, std::string_view source) {
    check(steps.size() <= max_steps, source, ": normalizer: ", steps.size(), " steps; expected at most ",
          max_steps);
    for (const NormalizerStep& step : steps) steps_.push_back(std::visit(StepMaker{source}, step));
    double growth = 1.0;  // how much longer all Replace steps together may make a text
    for (const NormalizerStep& step : steps)
        if (const auto* const replace = std::get_if<ReplaceStep>(&step))
            growth *= std::max(
                1.0, static_cast<double>(replace->to.size()) / static_cast<double>(replace->from.size()));
    check(growth <= max_growth, source, ": normalizer: the Replace steps make a text ", growth,
          " times as long; expected at most ", max_growth);
    keeps_symbols_ = std::ranges::all_of(
        steps, [](const NormalizerStep& step) { return std::holds_alternative<SentencePieceStep>(step); });
}

std::string Normalizer::run(std::string_view text) const {
    std::string result(text);
    for (const Step& step : steps_) result = step(result);
    return result;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
    std::string out;
    out.reserve(text.size() + text.size() / 2);
    for (std::size_t position = 0; position < text.size();) {
        const std::size_t found = std::min(text.find(from, position), text.size());
        out += text.substr(position, found - position);
        if (found < text.size()) out += to;
        position = std::min(found + from.size(), text.size());
    }
    return out;
}

}  // namespace gradtile
