#pragma once
/// Texts that consist of stories: they are divided between two stories, and the lowest possible loss on them
/// may be known.
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace gradtile {

/// One story in a text: characters [begin, end), including the blank line that ends it.
struct Story {
    std::size_t begin = 0;
    std::size_t end = 0;
    double nll = 0.0;  ///< the story's -ln p under the grammar that generated it, nats
};

/// Returns a text's stories, which cover it and are ASCII, or nullopt for any other text.
using StoryParser = std::function<std::optional<std::vector<Story>>(std::string_view text)>;

/// Returns -ln p of the stories divided by their characters: the loss, in nats per character, of a predictor
/// that knows the grammar and the whole story so far. No model can do better on average.
double source_nll_per_character(std::span<const Story> stories);

/// Returns where to split a text into training and validation: the border between two stories that is nearest
/// to `fraction` of the text. Returns nothing for fewer than two stories.
std::optional<std::size_t> nearest_story_border(std::span<const Story> stories, double fraction);

}  // namespace gradtile
