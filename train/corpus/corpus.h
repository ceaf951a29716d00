#pragma once
/// Short stories from a probabilistic grammar: a text to learn from that needs no download, and whose own
/// entropy is known, so that a model's loss can be held against what the source itself reaches.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/random.h>

namespace gradtile {

/// One story of a text: characters [begin, end), the blank line that ends it included.
struct Story {
    std::size_t begin = 0;
    std::size_t end = 0;
    double nll = 0.0;  ///< -ln p of the story under the grammar, nats
};

struct Corpus {
    std::string text;  ///< ASCII; the stories one after another, "\n\n" at the end of each and nowhere else
    std::vector<Story> stories;
};

/// Whole stories until there are at least `characters` characters; the same text on every machine.
Corpus generate_corpus(std::int64_t characters, Seed seed);

/// The stories of a text that generate_corpus may have written, with their probabilities; none when any part
/// of the text is something else. Every story has exactly one derivation (see Grammar), so its probability is
/// the product of the probabilities of its choices.
std::optional<std::vector<Story>> parse_corpus(std::string_view text);

/// -ln p of the stories over their characters: the loss, in nats per character, of a predictor that knows the
/// grammar and remembers the whole story so far. No model can do better on average.
double source_nll_per_character(std::span<const Story> stories);

/// Where to split a text into training and validation between two stories: the border nearest to `fraction`
/// of it. None for fewer than two stories.
std::optional<std::size_t> nearest_story_border(std::span<const Story> stories, double fraction);

}  // namespace gradtile
