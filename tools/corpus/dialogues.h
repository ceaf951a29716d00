#pragma once
/// Short conversations from a probabilistic grammar, to try the whole path from data to `gradtile chat`.
#include <cstdint>
#include <string>
#include <vector>

#include <gradtile/core/random.h>

namespace gradtile {

/// The lines of a conversation: the first is the user's, the second the assistant's answer, and so on.
using DialogueLines = std::vector<std::string>;

/// Returns `count` conversations, the same on every machine. Answers depend on earlier lines: on the user's
/// name, on a thing that the user owns and its colour, and on the animal that they talk about.
std::vector<DialogueLines> generate_dialogues(std::int64_t count, Seed seed);

/// Returns the text for a `gradtile train` file: a line {"messages": [...]} for each conversation.
std::string conversations_text(const std::vector<DialogueLines>& dialogues);

}  // namespace gradtile
