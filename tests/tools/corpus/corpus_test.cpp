#include <gradtile/tools/corpus/corpus.h>

#include <cmath>
#include <functional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/tools/corpus/grammar.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::HasSubstr;

/// Finds every derivation of a text by trying every branch at every choice. The search shares no code with
/// the tested parser: it uses neither the beginnings of alternatives nor the guarantee that only one branch
/// fits.
class AllDerivations {
  public:
    AllDerivations(const Grammar& grammar, std::string_view text)
        : grammar_(grammar), text_(text), bindings_(grammar.attributes().size(), -1) {
        try_rule(grammar.start(), 0, 0.0, [&](std::size_t end, double log_probability) {
            if (end == text_.size()) log_probabilities_.push_back(log_probability);
        });
    }
    const std::vector<double>& log_probabilities() const { return log_probabilities_; }

  private:
    using Then = std::function<void(std::size_t, double)>;

    void try_rule(std::size_t index, std::size_t position, double log_p, const Then& then) {
        const Grammar::Rule& rule = grammar_.rules()[index];
        double total = 0;
        for (const auto& alternative : rule.alternatives) total += double(alternative.weight);
        for (const auto& alternative : rule.alternatives)
            try_symbols(alternative.symbols, 0, position,
                        log_p + std::log(double(alternative.weight) / total), then);
    }

    void try_symbols(const std::vector<Grammar::Symbol>& symbols, std::size_t i, std::size_t position,
                     double log_p, const Then& then) {
        if (i == symbols.size()) return then(position, log_p);
        const Grammar::Symbol& symbol = symbols[i];
        const auto go_on = [&](std::size_t end, double p) { try_symbols(symbols, i + 1, end, p, then); };
        const auto match = [&](const std::string& expected, double p) {
            if (text_.substr(position).starts_with(expected)) go_on(position + expected.size(), p);
        };
        switch (symbol.kind) {
            case Grammar::Symbol::Kind::literal:
                return match(symbol.text, log_p);
            case Grammar::Symbol::Kind::rule:
                return try_rule(symbol.rule, position, log_p, go_on);
            case Grammar::Symbol::Kind::mention:
                return match(grammar_.word(symbol, std::size_t(bindings_[symbol.attribute])), log_p);
            case Grammar::Symbol::Kind::introduction: {
                std::vector<std::size_t> free;
                for (std::size_t w = 0; w < grammar_.words_of(symbol).size(); ++w)
                    if (!grammar_.is_taken(symbol, w, bindings_)) free.push_back(w);
                for (const std::size_t w : free) {
                    bindings_[symbol.attribute] = std::int32_t(w);
                    match(grammar_.word(symbol, w), log_p - std::log(double(free.size())));
                    bindings_[symbol.attribute] = -1;
                }
            }
        }
    }

    const Grammar& grammar_;
    std::string_view text_;
    Grammar::Bindings bindings_;
    std::vector<double> log_probabilities_;
};

TEST(AllDerivations, FindsBothDerivationsOfAnAmbiguousText) {
    // The grammar is unambiguous for the constructor, and becomes ambiguous when the test repeats an
    // alternative. The counter must find both derivations.
    const Grammar grammar("s = | a{x} | b\nx = | b | c\n", "s");
    EXPECT_EQ(AllDerivations(grammar, "ab").log_probabilities().size(), 1u);
    Grammar ambiguous = grammar;
    const_cast<Grammar::Rule&>(ambiguous.rules()[0]).alternatives[1].symbols[0].text = "ab";
    EXPECT_EQ(AllDerivations(ambiguous, "ab").log_probabilities().size(), 2u);
    EXPECT_EQ(AllDerivations(grammar, "ad").log_probabilities().size(), 0u);
}

TEST(Corpus, EveryStoryHasExactlyOneDerivationAndItsProbabilityIsTheGenerators) {
    const Grammar grammar(story_grammar_notation, "story");
    const Corpus corpus = generate_corpus(150000, Seed{11});
    ASSERT_GT(corpus.stories.size(), 100u);
    for (const Story& story : corpus.stories) {
        const auto text = std::string_view(corpus.text).substr(story.begin, story.end - story.begin);
        const AllDerivations all(grammar, text);
        ASSERT_EQ(all.log_probabilities().size(), 1u) << text;
        EXPECT_NEAR(all.log_probabilities()[0], -story.nll,
                    1e-9);  // sums with ~100 terms below 10: 100*100*2^-53
    }
}

TEST(Corpus, TheParserRecoversStoriesAndProbabilities) {
    const Corpus corpus = generate_corpus(300000, Seed{12});
    const auto stories = parse_corpus(corpus.text);
    ASSERT_TRUE(stories.has_value());
    ASSERT_EQ(stories->size(), corpus.stories.size());
    for (std::size_t i = 0; i < stories->size(); ++i) {
        EXPECT_EQ((*stories)[i].begin, corpus.stories[i].begin);
        EXPECT_EQ((*stories)[i].end, corpus.stories[i].end);
        EXPECT_NEAR((*stories)[i].nll, corpus.stories[i].nll, 1e-9);
    }
    EXPECT_NEAR(source_nll_per_character(*stories), source_nll_per_character(corpus.stories), 1e-9);
}

TEST(Corpus, OtherTextIsNotParsedAsStories) {
    const std::string text = generate_corpus(3000, Seed{1}).text;
    EXPECT_TRUE(parse_corpus(text).has_value());
    for (const std::string& other :
         {std::string(), std::string("First Citizen:\nBefore we proceed any further, hear me speak.\n\n"),
          text.substr(0, text.size() - 1), text.substr(1), text + "\n", text + "The end."})
        EXPECT_FALSE(parse_corpus(other).has_value());
    // A pronoun that does not fit its character ("he" for a girl) is not in the grammar.
    std::string wrong = text;
    const std::size_t she =
        wrong.find(" she ") < wrong.find(" he ") ? wrong.find(" she ") : wrong.find(" he ");
    ASSERT_NE(she, std::string::npos);
    wrong.replace(she, wrong[she + 1] == 's' ? 5 : 4, wrong[she + 1] == 's' ? " he " : " she ");
    EXPECT_FALSE(parse_corpus(wrong).has_value());
}

TEST(Corpus, TheRealisedProbabilityIsTheEntropyOfTheChoices) {
    // The mean of -ln p over stories is the grammar's entropy, so with many stories the two halves have
    // nearly equal means. The bound is five standard errors of the difference, estimated from the stories.
    const Corpus corpus = generate_corpus(1000000, Seed{13});
    const std::size_t half = corpus.stories.size() / 2;
    double sum[2] = {}, squares = 0;
    for (std::size_t i = 0; i < 2 * half; ++i) {
        sum[i / half] += corpus.stories[i].nll;
        squares += corpus.stories[i].nll * corpus.stories[i].nll;
    }
    const double n = double(half), mean = (sum[0] + sum[1]) / (2 * n);
    const double deviation = std::sqrt(squares / (2 * n) - mean * mean);
    EXPECT_LT(std::abs(sum[0] - sum[1]) / n, 5 * deviation * std::sqrt(2 / n));
}

TEST(Corpus, ChoicesHaveTheirProbabilities) {
    // "and the lost" has weight 3/14 among adventures, which are 14/20 of the stories: 3/20 in all.
    const Corpus corpus = generate_corpus(2000000, Seed{14});
    double lost = 0;
    for (const Story& story : corpus.stories) {
        const std::string_view title =
            std::string_view(corpus.text)
                .substr(story.begin, corpus.text.find('\n', story.begin) - story.begin);
        lost += title.find(" and the lost ") != std::string_view::npos;
    }
    const double n = double(corpus.stories.size()), p = 14.0 / 20 * 3 / 14;
    EXPECT_NEAR(lost / n, p, 4 * std::sqrt(p * (1 - p) / n));  // four standard deviations
}

TEST(Corpus, IsTheSameTextOnEveryMachine) {
    // The text's FNV-1a hash. A change to the grammar or the generator changes the text, and with it every
    // published loss on it.
    const auto hash = [](std::string_view text) {
        std::uint64_t h = 14695981039346656037u;
        for (const unsigned char c : text) h = (h ^ c) * 1099511628211u;
        return h;
    };
    const Corpus corpus = generate_corpus(10000, Seed{1});
    EXPECT_EQ(hash(corpus.text), 5409135562311091958u) << corpus.text.substr(0, 400);
    EXPECT_EQ(generate_corpus(10000, Seed{1}).text, corpus.text);
    EXPECT_NE(generate_corpus(10000, Seed{2}).text, corpus.text);
    EXPECT_EQ(generate_corpus(50000, Seed{1}).text.substr(0, corpus.text.size()), corpus.text);
}

TEST(Corpus, HasTheRequestedLengthUpToOneStory) {
    for (const std::int64_t characters : {1, 1000, 77777}) {
        const Corpus corpus = generate_corpus(characters, Seed{5});
        EXPECT_GE(std::ssize(corpus.text), characters);
        EXPECT_LT(std::int64_t(corpus.stories.back().begin), characters);
        EXPECT_EQ(corpus.stories.back().end, corpus.text.size());
    }
    EXPECT_THROW(generate_corpus(0, Seed{1}), Error);
}

TEST(Corpus, StoriesAreReadable) {
    const Corpus corpus = generate_corpus(400000, Seed{6});
    std::set<std::string_view> shapes;
    for (const Story& story : corpus.stories) {
        const auto text = std::string_view(corpus.text).substr(story.begin, story.end - story.begin);
        EXPECT_GT(text.size(), 300u);
        EXPECT_LT(text.size(), 2000u);
        EXPECT_TRUE(text.ends_with("\n\n"));
        EXPECT_EQ(text.find("\n\n"), text.size() - 2);  // the only blank line is at the end
        EXPECT_EQ(text.find("  "), std::string_view::npos);
        for (const char* slip :
             {" a a ", " an b", " .", " ,", "..", ",.", "?.", "!.", " \n", "\n ", "{", "}", "|", "\\"})
            EXPECT_EQ(text.find(slip), std::string_view::npos) << slip << " in\n" << text;
        for (const char* article : {" a e", " a i", " a o", "A e", "A i", "A o"})
            EXPECT_EQ(text.find(article), std::string_view::npos) << article << " in\n" << text;
        for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
        for (const char* shape : {" and the lost ", " and the great race", " the night of the storm",
                                  " hungry ", " and the giant ", " sleepless moon", " little door", "How ",
                                  "quarrel of ", "secret of ", " for "})
            if (text.substr(0, text.find('\n')).find(shape) != std::string_view::npos) shapes.insert(shape);
    }
    EXPECT_EQ(shapes.size(), 11u);
}

TEST(Corpus, TheSplitFallsBetweenStories) {
    const std::vector<Story> stories = {{0, 100, 1}, {100, 250, 1}, {250, 300, 1}, {300, 1000, 1}};
    EXPECT_EQ(nearest_story_border(stories, 0.9), 300u);
    EXPECT_EQ(nearest_story_border(stories, 0.26), 250u);
    EXPECT_EQ(nearest_story_border(stories, 0.0), 100u);
    EXPECT_EQ(nearest_story_border(std::span(stories).first(1), 0.9), std::nullopt);
}

TEST(Grammar, RefusesAmbiguousGrammars) {
    const auto refusal = [](std::string_view notation) {
        return message_of([&] { Grammar(notation, "s"); });
    };
    EXPECT_THAT(refusal("s = | ab | abc\n"), HasSubstr("two alternatives begin alike: 'ab' and 'abc'"));
    EXPECT_THAT(refusal("s = | {x}b | {y}c\nx = | a\ny = | a\n"), HasSubstr("begin alike"));
    EXPECT_THAT(refusal("s = | a{t}\nt = | b{s}\n"), HasSubstr("contains itself"));
    EXPECT_THAT(refusal("w(x) = | to | tom\ns = | {h=w}\n"),
                HasSubstr("two words begin alike: 'to' and 'tom'"));
    EXPECT_THAT(refusal("w(x/she) = | A/he | B/he\ns = | {h=w.she}\n"), HasSubstr("two words begin alike"));
    EXPECT_THAT(refusal("w(x) = | A | B\ns = | {t} met {h}\nt = | {h=w} | nobody\n"),
                HasSubstr("{h} may be mentioned before it is introduced"));
    EXPECT_THAT(refusal("w(x) = | A | B\ns = | {t} met {h=w}\nt = | {h=w} | nobody\n"),
                HasSubstr("{h} may be introduced twice"));
    EXPECT_THAT(refusal("s = | a |\n"), HasSubstr("an empty alternative"));
    EXPECT_THAT(refusal("s = | {nobody}\n"), HasSubstr("{nobody} is neither a rule nor introduced anywhere"));
    EXPECT_EQ(refusal("s = | ab | ac\n"), "no error");
}

TEST(Grammar, TwoAttributesOfAClassHoldDifferentWords) {
    const Grammar grammar("w(x) = | A | B | C\ns = | {h=w} met {r=w}, and {r} met {h}.\n", "s");
    for (const char* text : {"A met B, and B met A.", "C met A, and A met C."}) {
        const auto parse = grammar.parse(text, 0);
        ASSERT_TRUE(parse.has_value());
        EXPECT_NEAR(parse->log_probability, -std::log(6.0), 1e-15);
    }
    EXPECT_FALSE(grammar.parse("A met A, and A met A.", 0).has_value());
    EXPECT_FALSE(grammar.parse("A met B, and A met B.", 0).has_value());
}

}  // namespace
}  // namespace gradtile
