#include <gradtile/tools/corpus/grammar.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

using Symbol = Grammar::Symbol;
using Kind = Grammar::Symbol::Kind;

std::string_view trimmed(std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

std::vector<std::string> split(std::string_view text, char separator) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(separator, begin), text.size());
        parts.emplace_back(trimmed(text.substr(begin, end - begin)));
        begin = end + 1;
    }
    return parts;
}

bool is_capital(std::string_view word) {
    return !word.empty() && std::isupper(static_cast<unsigned char>(word[0])) != 0;
}

std::string lower_first(std::string word) {
    if (!word.empty()) word[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(word[0])));
    return word;
}

template <class Items>
std::size_t index_of(const Items& items, std::string_view name) {
    const auto found =
        std::ranges::find(items, name, [](const auto& item) { return std::string_view(item.name); });
    return static_cast<std::size_t>(found - items.begin());
}

}  // namespace

/// Reads the notation. A first pass declares the names, so that a rule may be defined after its use.
class GrammarReader {
  public:
    GrammarReader(Grammar& grammar, std::string_view notation) : grammar_(grammar) {
        std::vector<std::string> bodies;  // rule bodies, in rules_ order
        for (const auto& [head, body] : definitions(notation)) {
            if (head.ends_with(')')) {
                read_word_class(head, body);
            } else {
                check(index_of(grammar_.rules_, head) == grammar_.rules_.size(), "grammar: rule ", head,
                      " is defined twice");
                grammar_.rules_.push_back({head, 0, {}});
                bodies.push_back(body);
            }
        }
        for (std::size_t i = 0; i < bodies.size(); ++i) read_rule(grammar_.rules_[i], bodies[i]);
        for (const auto& [symbol, where] : mentions_) resolve_mention(*symbol, where);
    }

  private:
    static std::vector<std::pair<std::string, std::string>> definitions(std::string_view notation) {
        std::vector<std::pair<std::string, std::string>> found;
        for (std::size_t begin = 0; begin < notation.size();) {
            const std::size_t end = std::min(notation.find('\n', begin), notation.size());
            const std::string_view line = notation.substr(begin, end - begin);
            begin = end + 1;
            if (trimmed(line).empty() || line[0] == '#') continue;
            if (line[0] == ' ') {
                check(!found.empty(), "grammar: the first line is indented");
                found.back().second += ' ';
                found.back().second += trimmed(line);
            } else {
                const std::size_t equals = line.find('=');
                check(equals != std::string_view::npos, "grammar: expected name = ..., found ", line);
                found.emplace_back(trimmed(line.substr(0, equals)), trimmed(line.substr(equals + 1)));
            }
        }
        return found;
    }

    static std::vector<std::string> alternatives(const std::string& head, const std::string& body) {
        std::vector<std::string> parts = split(body, '|');
        check(parts.size() >= 2 && parts[0].empty(), "grammar: ", head,
              ": expected | before every alternative");
        parts.erase(parts.begin());
        return parts;
    }

    void read_word_class(const std::string& head, const std::string& body) {
        const std::size_t open = head.find('(');
        Grammar::WordClass word_class;
        word_class.name = head.substr(0, open);
        for (std::string& form : split(head.substr(open + 1, head.size() - open - 2), '/'))
            word_class.forms.push_back(lower_first(std::move(form)));
        for (const std::string& word : alternatives(head, body)) {
            word_class.words.push_back(split(word, '/'));
            check(word_class.words.back().size() == word_class.forms.size(), "grammar: ", word_class.name,
                  ": ", word, ": expected ", word_class.forms.size(), " forms");
        }
        grammar_.word_classes_.push_back(std::move(word_class));
    }

    void read_rule(Grammar::Rule& rule, const std::string& body) {
        for (std::string_view text : std::vector<std::string>(alternatives(rule.name, body))) {
            Grammar::Alternative alternative;
            const std::size_t colon = text.find(": ");
            if (colon != std::string_view::npos && colon > 0 &&
                std::ranges::all_of(text.substr(0, colon),
                                    [](unsigned char c) { return std::isdigit(c) != 0; })) {
                alternative.weight = std::stoll(std::string(text.substr(0, colon)));
                text = trimmed(text.substr(colon + 2));
            }
            check(alternative.weight > 0 && !text.empty(), "grammar: ", rule.name, ": an empty alternative");
            read_symbols(rule, alternative, text);
            rule.total_weight += alternative.weight;
            rule.alternatives.push_back(std::move(alternative));
        }
        for (Grammar::Alternative& alternative : rule.alternatives)
            for (Symbol& symbol : alternative.symbols)
                if (symbol.kind == Kind::mention) mentions_.emplace_back(&symbol, rule.name);
    }

    void read_symbols(const Grammar::Rule& rule, Grammar::Alternative& alternative, std::string_view text) {
        std::string literal;
        const auto finish_literal = [&] {
            if (!literal.empty()) alternative.symbols.push_back({.kind = Kind::literal, .text = literal});
            literal.clear();
        };
        for (std::size_t i = 0; i < text.size(); ++i) {
            if (text.substr(i).starts_with("\\n") || text.substr(i).starts_with("\\s")) {
                literal += text[++i] == 'n' ? '\n' : ' ';
            } else if (text[i] == '{') {
                finish_literal();
                const std::size_t close = text.find('}', i);
                check(close != std::string_view::npos, "grammar: ", rule.name, ": { without }");
                alternative.symbols.push_back(read_slot(rule, text.substr(i + 1, close - i - 1)));
                i = close;
            } else {
                literal += text[i];
            }
        }
        finish_literal();
    }

    /// Reads one of: rule, attribute, attribute.form, attribute=class, attribute=class.form.
    Symbol read_slot(const Grammar::Rule& rule, std::string_view slot) {
        const std::size_t dot = std::min(slot.find('.'), slot.size());
        const std::size_t equals = slot.find('=');
        const std::string_view name = slot.substr(0, std::min(equals, dot));
        Symbol symbol;
        if (equals == std::string_view::npos && dot == slot.size()) {
            symbol.rule = index_of(grammar_.rules_, name);
            if (symbol.rule < grammar_.rules_.size()) {
                symbol.kind = Kind::rule;
                return symbol;
            }
        }
        // `text` keeps a mention's form until every introduction has been read, because introductions
        // determine the attributes' classes.
        symbol.kind = Kind::mention;
        symbol.text = slot.substr(std::min(dot + 1, slot.size()));
        symbol.attribute = attribute_named(name);
        if (equals == std::string_view::npos) return symbol;

        const std::string_view class_name = slot.substr(equals + 1, dot - equals - 1);
        const std::size_t word_class = index_of(grammar_.word_classes_, class_name);
        check(word_class < grammar_.word_classes_.size(), "grammar: ", rule.name, ": no word class ",
              class_name);
        Grammar::Attribute& attribute = grammar_.attributes_[symbol.attribute];
        check(attribute.word_class == unknown_class || attribute.word_class == word_class,
              "grammar: ", rule.name, ": ", name, " is introduced with two word classes");
        attribute.word_class = word_class;
        symbol.kind = Kind::introduction;
        resolve_form(symbol, rule.name);
        return symbol;
    }

    std::size_t attribute_named(std::string_view name) {
        const std::size_t index = index_of(grammar_.attributes_, name);
        if (index == grammar_.attributes_.size())
            grammar_.attributes_.push_back({std::string(name), unknown_class});
        return index;
    }

    void resolve_mention(Symbol& symbol, const std::string& rule) {
        const Grammar::Attribute& attribute = grammar_.attributes_[symbol.attribute];
        check(attribute.word_class != unknown_class, "grammar: ", rule, ": {", attribute.name,
              "} is neither a rule nor introduced anywhere");
        resolve_form(symbol, rule);
    }

    void resolve_form(Symbol& symbol, const std::string& rule) {
        const auto& word_class = grammar_.word_classes_[grammar_.attributes_[symbol.attribute].word_class];
        if (!symbol.text.empty()) {
            const auto found = std::ranges::find(word_class.forms, lower_first(symbol.text));
            check(found != word_class.forms.end(), "grammar: ", rule, ": ", word_class.name, " has no form ",
                  symbol.text);
            symbol.form = static_cast<std::size_t>(found - word_class.forms.begin());
            symbol.capital = is_capital(symbol.text);
        }
        symbol.text.clear();
    }

    static constexpr std::size_t unknown_class = static_cast<std::size_t>(-1);
    Grammar& grammar_;
    std::vector<std::pair<Symbol*, std::string>> mentions_;
};

Grammar::Grammar(std::string_view notation, std::string_view start) {
    GrammarReader(*this, notation);
    start_ = index_of(rules_, start);
    check(start_ < rules_.size(), "grammar: no rule ", start);
    std::vector<int> visits(rules_.size(), 0);
    for (std::size_t rule = 0; rule < rules_.size(); ++rule) find_beginnings(rule, visits);
    check_beginnings();
    check_attributes();
}

std::string Grammar::word(const Symbol& symbol, std::size_t index) const {
    std::string shown = words_of(symbol)[index][symbol.form];
    if (symbol.capital) shown[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(shown[0])));
    return shown;
}

bool Grammar::is_taken(const Symbol& introduction, std::size_t index, const Bindings& bindings) const {
    for (std::size_t other = 0; other < attributes_.size(); ++other)
        if (attributes_[other].word_class == attributes_[introduction.attribute].word_class &&
            bindings[other] == static_cast<std::int32_t>(index))
            return true;
    return false;
}

// ---- The three conditions --------------------------------------------------------------------------------

/// Checks condition 1, and collects the beginnings that condition 2 compares. In `visits`, 0 means not seen,
/// 1 being visited, 2 done.
void Grammar::find_beginnings(std::size_t index, std::vector<int>& visits) {
    Rule& rule = rules_[index];
    check(visits[index] != 1, "grammar: ", rule.name, " contains itself");
    if (visits[index] == 2) return;
    visits[index] = 1;
    for (Alternative& alternative : rule.alternatives) {
        for (const Symbol& symbol : alternative.symbols)
            if (symbol.kind == Kind::rule) find_beginnings(symbol.rule, visits);

        alternative.beginnings = beginnings_of(alternative.symbols);
    }
    visits[index] = 2;
}

/// Returns the texts that a symbol sequence can begin with: the literals and words up to the first rule, and
/// that rule's beginnings. "He ran" and "Her hat" are distinct, but "He" is a prefix of "Her".
std::vector<std::string> Grammar::beginnings_of(std::span<const Symbol> symbols) const {
    std::vector<std::string> texts = {""};
    const auto extend = [&](const std::vector<std::string>& continuations) {
        std::vector<std::string> longer;
        for (const std::string& text : texts)
            for (const std::string& continuation : continuations) longer.push_back(text + continuation);
        texts = std::move(longer);
    };
    bool has_word = false;
    for (const Symbol& symbol : symbols) {
        if (symbol.kind == Kind::literal) {
            extend({symbol.text});
            // The beginnings stop before a second word: a word and the literal after it distinguish
            // alternatives well enough, and a second word would multiply the text count.
            if (has_word) break;
        } else if (symbol.kind == Kind::rule) {
            if (has_word) break;
            std::vector<std::string> inner;
            for (const Alternative& alternative : rules_[symbol.rule].alternatives)
                inner.insert(inner.end(), alternative.beginnings.begin(), alternative.beginnings.end());
            extend(inner);
            break;
        } else {
            if (has_word) break;
            std::vector<std::string> words;
            for (std::size_t i = 0; i < words_of(symbol).size(); ++i) words.push_back(word(symbol, i));
            extend(words);
            has_word = true;
        }
    }
    // Several words may share a form (he, she), and one form may be another's prefix; then only the shorter
    // one is needed.
    std::ranges::sort(texts);
    std::vector<std::string> shortest;
    for (std::string& text : texts)
        if (shortest.empty() || !text.starts_with(shortest.back())) shortest.push_back(std::move(text));
    return shortest;
}

/// Checks condition 2. In sorted order, a text that is a prefix for other texts stands directly before one
/// such text.
void Grammar::check_beginnings() const {
    for (const Rule& rule : rules_) {
        std::vector<std::pair<std::string_view, std::size_t>> sorted;
        for (std::size_t i = 0; i < rule.alternatives.size(); ++i)
            for (const std::string& beginning : rule.alternatives[i].beginnings)
                sorted.emplace_back(beginning, i);
        std::ranges::sort(sorted);
        check(!sorted.front().first.empty(), "grammar: ", rule.name,
              ": an alternative may begin with nothing");
        for (std::size_t i = 1; i < sorted.size(); ++i)
            check(!sorted[i].first.starts_with(sorted[i - 1].first), "grammar: ", rule.name,
                  ": two alternatives begin alike: '", sorted[i - 1].first, "' and '", sorted[i].first, "'");
        for (const Alternative& alternative : rule.alternatives)
            for (const Symbol& symbol : alternative.symbols)
                if (symbol.kind == Kind::introduction) check_introduction(rule, symbol);
    }
}

void Grammar::check_introduction(const Rule& rule, const Symbol& symbol) const {
    std::vector<std::string> words;
    for (std::size_t i = 0; i < words_of(symbol).size(); ++i) words.push_back(word(symbol, i));
    std::ranges::sort(words);
    check(!words.front().empty(), "grammar: ", rule.name, ": {", attributes_[symbol.attribute].name,
          "} may be an empty word");
    for (std::size_t i = 1; i < words.size(); ++i)
        check(!words[i].starts_with(words[i - 1]), "grammar: ", rule.name, ": {",
              attributes_[symbol.attribute].name, "}: two words begin alike: '", words[i - 1], "' and '",
              words[i], "'");
}

/// Checks condition 3: computes which attributes are certainly and which are possibly introduced on every
/// path.
void Grammar::check_attributes() const {
    struct Known {
        std::set<std::size_t> surely, possibly;
        bool operator<(const Known& other) const {
            return std::tie(surely, possibly) < std::tie(other.surely, other.possibly);
        }
    };
    // Attributes known after a rule, by rule and attributes known before it.
    std::map<std::pair<std::size_t, Known>, Known> after;
    const std::function<Known(std::size_t, const Known&)> walk = [&](std::size_t index, const Known& before) {
        const auto found = after.find({index, before});
        if (found != after.end()) return found->second;
        const Rule& rule = rules_[index];
        std::optional<Known> joined;
        for (const Alternative& alternative : rule.alternatives) {
            Known known = before;
            for (const Symbol& symbol : alternative.symbols) {
                const auto name = [&] { return attributes_[symbol.attribute].name; };
                if (symbol.kind == Kind::rule) known = walk(symbol.rule, known);
                if (symbol.kind == Kind::mention)
                    check(known.surely.contains(symbol.attribute), "grammar: ", rule.name, ": {", name(),
                          "} may be mentioned before it is introduced");
                if (symbol.kind != Kind::introduction) continue;
                check(!known.possibly.contains(symbol.attribute), "grammar: ", rule.name, ": {", name(),
                      "} may be introduced twice");
                known.surely.insert(symbol.attribute);
                known.possibly.insert(symbol.attribute);
            }
            if (!joined) joined = known;
            std::erase_if(joined->surely, [&](std::size_t i) { return !known.surely.contains(i); });
            joined->possibly.merge(known.possibly);
        }
        return after[{index, before}] = *joined;
    };
    walk(start_, {});
}

// ---- Generation and parsing ------------------------------------------------------------------------------

namespace {

/// Expands the start rule by random choices.
class Generation {
  public:
    Generation(const Grammar& grammar, std::string& out,
               const std::function<std::int64_t(std::int64_t)>& draw)
        : grammar_(grammar), out_(out), draw_(draw), bindings_(grammar.attributes().size(), -1) {}

    void expand(const Grammar::Rule& rule) {
        std::int64_t left = draw_(rule.total_weight);
        auto chosen = rule.alternatives.begin();
        while (left >= chosen->weight) left -= (chosen++)->weight;
        log_probability_ +=
            std::log(static_cast<double>(chosen->weight) / static_cast<double>(rule.total_weight));
        for (const Symbol& symbol : chosen->symbols) {
            if (symbol.kind == Kind::literal) out_ += symbol.text;
            if (symbol.kind == Kind::rule) expand(grammar_.rules()[symbol.rule]);
            if (symbol.kind == Kind::introduction) introduce(symbol);
            if (symbol.kind == Kind::introduction || symbol.kind == Kind::mention)
                out_ += grammar_.word(symbol, static_cast<std::size_t>(bindings_[symbol.attribute]));
        }
    }
    double log_probability() const { return log_probability_; }

  private:
    void introduce(const Symbol& symbol) {
        const auto& words = grammar_.words_of(symbol);
        std::vector<std::int32_t> free;
        for (std::size_t i = 0; i < words.size(); ++i)
            if (!grammar_.is_taken(symbol, i, bindings_)) free.push_back(static_cast<std::int32_t>(i));
        bindings_[symbol.attribute] = free[static_cast<std::size_t>(draw_(std::ssize(free)))];
        log_probability_ -= std::log(static_cast<double>(free.size()));
    }

    const Grammar& grammar_;
    std::string& out_;
    const std::function<std::int64_t(std::int64_t)>& draw_;
    Grammar::Bindings bindings_;
    double log_probability_ = 0.0;
};

/// Finds the derivation from left to right: in each choice at most one branch matches the text.
class Reading {
  public:
    Reading(const Grammar& grammar, std::string_view text, std::size_t begin)
        : grammar_(grammar), text_(text), position_(begin), bindings_(grammar.attributes().size(), -1) {}

    bool read(const Grammar::Rule& rule) {
        const auto chosen =
            std::ranges::find_if(rule.alternatives, [&](const Grammar::Alternative& candidate) {
                return std::ranges::any_of(candidate.beginnings,
                                           [&](const std::string& b) { return ahead(b); });
            });
        if (chosen == rule.alternatives.end()) return false;
        log_probability_ +=
            std::log(static_cast<double>(chosen->weight) / static_cast<double>(rule.total_weight));
        return std::ranges::all_of(chosen->symbols, [&](const Symbol& symbol) { return read(symbol); });
    }
    Grammar::Parse result() const { return {position_, log_probability_}; }

  private:
    bool ahead(std::string_view expected) const { return text_.substr(position_).starts_with(expected); }

    bool consume(std::string_view expected) {
        if (!ahead(expected)) return false;
        position_ += expected.size();
        return true;
    }

    bool read(const Symbol& symbol) {
        if (symbol.kind == Kind::literal) return consume(symbol.text);
        if (symbol.kind == Kind::rule) return read(grammar_.rules()[symbol.rule]);
        if (symbol.kind == Kind::mention)
            return consume(grammar_.word(symbol, static_cast<std::size_t>(bindings_[symbol.attribute])));
        const auto& words = grammar_.words_of(symbol);
        std::int64_t free = 0;
        std::int32_t met = -1;
        for (std::size_t i = 0; i < words.size(); ++i) {
            if (grammar_.is_taken(symbol, i, bindings_)) continue;
            ++free;
            if (met < 0 && consume(grammar_.word(symbol, i))) met = static_cast<std::int32_t>(i);
        }
        bindings_[symbol.attribute] = met;
        log_probability_ -= std::log(static_cast<double>(free));
        return met >= 0;
    }

    const Grammar& grammar_;
    std::string_view text_;
    std::size_t position_;
    Grammar::Bindings bindings_;
    double log_probability_ = 0.0;
};

}  // namespace

double Grammar::generate(std::string& out, const std::function<std::int64_t(std::int64_t)>& draw) const {
    Generation generation(*this, out, draw);
    generation.expand(rules_[start_]);
    return generation.log_probability();
}

std::optional<Grammar::Parse> Grammar::parse(std::string_view text, std::size_t begin) const {
    Reading reading(*this, text, begin);
    if (begin > text.size() || !reading.read(rules_[start_])) return std::nullopt;
    return reading.result();
}

}  // namespace gradtile
