#pragma once
/// The grammar that `gradtile corpus` generates from, in Grammar's notation.
#include <string_view>

namespace gradtile {

/// Its start rule is `story`: a title, a few paragraphs, and the blank line that ends every story.
extern const std::string_view story_grammar_notation;

}  // namespace gradtile
