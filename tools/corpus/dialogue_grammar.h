#pragma once
/// The grammar for the conversations that `gradtile corpus --dialogues` generates, in Grammar's notation.
#include <string_view>

namespace gradtile {

/// Its start rule is `dialogue`. The first line is the user's, the second the assistant's, and so on.
extern const std::string_view dialogue_grammar_notation;

}  // namespace gradtile
