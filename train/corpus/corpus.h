#pragma once
/// Short stories from a probabilistic grammar: training text that needs no download. The entropy of the
/// grammar is known, so a model's loss can be compared with the lowest loss that is possible.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/random.h>

namespace gradtile {

/// One story of a text: characters [begin, end), including the blank line that ends it.
struct Story {
    std::size_t begin = 0;
    std::size_t end = 0;
    double nll = 0.0;  ///< -ln p of the story under the grammar, nats
};

struct Corpus {
    std::string text;  ///< ASCII; consecutive stories, each ends with "\n\n", which occurs nowhere else
    std::vector<Story> stories;
};

/// Generates whole stories until there are at least `characters` characters. The text is the same on every
/// machine.
Corpus generate_corpus(std::int64_t characters, Seed seed);

/// Returns the stories of a text with their probabilities, or nullopt if generate_corpus() cannot have
/// written the whole text. Every story has exactly one derivation (see Grammar), so its probability is the
/// product of the probabilities of its choices.
std::optional<std::vector<Story>> parse_corpus(std::string_view text);

/// Returns -ln p of the stories divided by their characters: the loss, in nats per character, of a predictor
/// that knows the grammar and the whole story so far. No model can do better on average.
double source_nll_per_character(std::span<const Story> stories);

/// Returns where to split a text into training and validation: the border between two stories that is nearest
/// to `fraction` of the text. Returns nothing for fewer than two stories.
std::optional<std::size_t> nearest_story_border(std::span<const Story> stories, double fraction);

}  // namespace gradtile
