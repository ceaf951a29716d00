#include <gradtile/tools/corpus/corpus.h>

#include <gradtile/core/check.h>
#include <gradtile/tools/corpus/draws.h>
#include <gradtile/tools/corpus/grammar.h>

namespace gradtile {
namespace {

// "stor". The purpose gives the corpus a key that no other use of the seed has.
constexpr std::uint64_t story_purpose = 0x73746F72;

/// The grammar is built once and then immutable.
const Grammar& story_grammar() {
    static const Grammar grammar(story_grammar_notation, "story");
    return grammar;
}

}  // namespace

Corpus generate_corpus(std::int64_t characters, Seed seed) {
    check(characters >= 1, "corpus: characters: ", characters, "; expected at least 1");
    const Grammar& grammar = story_grammar();
    GrammarDraws draws(seed, story_purpose);
    Corpus corpus;
    while (std::ssize(corpus.text) < characters) {
        const std::size_t begin = corpus.text.size();
        const double log_probability = grammar.generate(corpus.text, std::ref(draws));
        corpus.stories.push_back({begin, corpus.text.size(), -log_probability});
    }
    return corpus;
}

std::optional<std::vector<Story>> parse_corpus(std::string_view text) {
    std::vector<Story> stories;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::optional<Grammar::Parse> parse = story_grammar().parse(text, begin);
        if (!parse) return std::nullopt;
        stories.push_back({begin, parse->end, -parse->log_probability});
        begin = parse->end;
    }
    if (stories.empty()) return std::nullopt;
    return stories;
}

}  // namespace gradtile
