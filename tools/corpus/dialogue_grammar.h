#pragma once
/// The grammar of the conversations that `gradtile corpus --dialogues` generates, in the notation of Grammar.
#include <string_view>

namespace gradtile {

/// Its start rule is `dialogue`. The first line is the user's, the second the assistant's, and so on.
extern const std::string_view dialogue_grammar_notation;

}  // namespace gradtile
