#include <gradtile/train/data/dataset.h>

#include <algorithm>
#include <cmath>

#include <gradtile/core/check.h>

namespace gradtile {

double source_nll_per_character(std::span<const Story> stories) {
    double nll = 0.0;
    std::size_t characters = 0;
    for (const Story& story : stories) {
        nll += story.nll;
        characters += story.end - story.begin;
    }
    check(characters > 0, "stories: none");
    return nll / static_cast<double>(characters);
}

std::optional<std::size_t> nearest_story_border(std::span<const Story> stories, double fraction) {
    if (stories.size() < 2) return std::nullopt;
    const double wanted = fraction * static_cast<double>(stories.back().end);
    const auto distance = [&](const Story& story) {
        return std::abs(static_cast<double>(story.end) - wanted);
    };
    return std::ranges::min_element(stories.first(stories.size() - 1), {}, distance)->end;
}

}  // namespace gradtile
