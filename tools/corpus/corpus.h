#pragma once
/// Short stories from a probabilistic grammar: training text that needs no download. The grammar's entropy is
/// known, so a model's loss can be compared with the lowest possible loss.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/random.h>
#include <gradtile/train/data/dataset.h>

namespace gradtile {

struct Corpus {
    std::string text;  ///< ASCII; consecutive stories, each ends with "\n\n", which occurs nowhere else
    std::vector<Story> stories;
};

/// Generates whole stories until there are at least `characters` characters. The text is the same on every
/// machine.
Corpus generate_corpus(std::int64_t characters, Seed seed);

/// Returns the stories in a text with their probabilities, or nullopt if generate_corpus() cannot have
/// written the whole text. Every story has exactly one derivation (see Grammar), so its probability is the
/// product over its choices' probabilities.
std::optional<std::vector<Story>> parse_corpus(std::string_view text);

}  // namespace gradtile
