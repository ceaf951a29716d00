#pragma once
/// Probabilistic grammars in which every text has at most one derivation, so a text's probability is the
/// product over its choices' probabilities.
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradtile {

/// A grammar whose rules share a story's attributes: the hero is drawn once, at the first mention, and every
/// later mention and pronoun agrees with this choice. Attributes have finitely many values, so the notation
/// abbreviates a context-free grammar.
///
/// Notation. A definition begins in the first column and continues on indented lines; `|` stands before every
/// alternative; blanks around an alternative do not count; `\n` is a line break and `\s` a blank; `#` begins
/// a comment line.
///
///     child(Lily/she/girl) = | Lily/she/girl | Tom/he/boy      a word class: its forms, then its words
///     weather              = | 3: sunny | windy                a rule; windy has weight 1, sunny 3
///     story                = | One {weather} day {hero=child} woke. {hero.She} was a happy {hero.girl}.
///
/// {rule} is replaced by one of the rule's alternatives, with probability weight / sum of weights.
/// {hero=child.form} introduces the attribute hero: it draws, with equal probabilities, a word from the class
/// that no other attribute holds, and prints the word's form. {hero.form} mentions the attribute again.
/// Without a form, the first form is used; a form written with a capital prints the word with a capital.
///
/// Unambiguity. The constructor accepts a grammar only if
///   1. no rule contains itself, so that every derivation is finite;
///   2. the texts that a rule's alternatives can begin with are prefix-free between alternatives (and so are
///      a class's words in a form that introduces), and none is empty;
///   3. on every path an attribute is introduced exactly once, before it is mentioned.
/// By 2 at most one branch fits the text in every choice; by 3 a mention is no choice. So, read from left to
/// right, a text determines each choice: it has at most one derivation.
class Grammar {
  public:
    struct Symbol {
        enum class Kind { literal, rule, introduction, mention };
        Kind kind = Kind::literal;
        std::string text;           ///< the literal's text
        std::size_t rule = 0;       ///< index into rules()
        std::size_t attribute = 0;  ///< the attribute that is introduced or mentioned
        std::size_t form = 0;
        bool capital = false;
    };
    struct Alternative {
        std::int64_t weight = 1;
        std::vector<Symbol> symbols;
        std::vector<std::string> beginnings;  ///< every text of the alternative begins with one of these
    };
    struct Rule {
        std::string name;
        std::int64_t total_weight = 0;
        std::vector<Alternative> alternatives;
    };
    struct WordClass {
        std::string name;
        std::vector<std::string> forms;               ///< form names
        std::vector<std::vector<std::string>> words;  ///< [word][form]
    };
    struct Attribute {
        std::string name;
        std::size_t word_class = 0;
    };
    /// The word each attribute holds; -1: not introduced yet.
    using Bindings = std::vector<std::int32_t>;

    /// Throws Error naming the rule and its fault.
    Grammar(std::string_view notation, std::string_view start);

    /// Appends a random text from the start rule to `out` and returns its probability's natural logarithm.
    /// draw(n) returns a random number in [0, n).
    double generate(std::string& out, const std::function<std::int64_t(std::int64_t)>& draw) const;

    struct Parse {
        std::size_t end;  ///< where the derived text ends
        double log_probability;
    };
    /// Returns the start rule's derivation for the text from `begin` on; empty if there is none.
    std::optional<Parse> parse(std::string_view text, std::size_t begin) const;

    std::size_t start() const { return start_; }
    const std::vector<Rule>& rules() const { return rules_; }
    const std::vector<Attribute>& attributes() const { return attributes_; }
    /// Returns the words in the class of the attribute that the symbol introduces or mentions.
    const std::vector<std::vector<std::string>>& words_of(const Symbol& symbol) const {
        return word_classes_[attributes_[symbol.attribute].word_class].words;
    }
    /// Returns word number `index` of the symbol's class in the form that the symbol asks for.
    std::string word(const Symbol& symbol, std::size_t index) const;
    /// Returns whether another attribute of the same class holds the word already.
    bool is_taken(const Symbol& introduction, std::size_t index, const Bindings& bindings) const;

  private:
    friend class GrammarReader;
    void find_beginnings(std::size_t rule, std::vector<int>& visits);
    std::vector<std::string> beginnings_of(std::span<const Symbol> symbols) const;
    void check_beginnings() const;
    void check_introduction(const Rule& rule, const Symbol& symbol) const;
    void check_attributes() const;

    std::size_t start_ = 0;
    std::vector<Rule> rules_;
    std::vector<WordClass> word_classes_;
    std::vector<Attribute> attributes_;
};

/// The grammar that `gradtile corpus` generates from. Its start rule is `story`: a title, a few paragraphs,
/// and the blank line that ends every story.
extern const std::string_view story_grammar_notation;
/// The grammar for --dialogues. Its start rule is `dialogue`: the first line is the user's, the second the
/// assistant's, and so on.
extern const std::string_view dialogue_grammar_notation;

}  // namespace gradtile
