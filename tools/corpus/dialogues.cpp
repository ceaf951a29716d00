#include <gradtile/tools/corpus/dialogues.h>

#include <functional>
#include <sstream>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/tools/corpus/draws.h>
#include <gradtile/tools/corpus/grammar.h>

namespace gradtile {
namespace {

// "dial". The purpose gives dialogues a key that no other use of the seed has.
constexpr std::uint64_t dialogue_purpose = 0x6469616C;

}  // namespace

std::vector<DialogueLines> generate_dialogues(std::int64_t count, Seed seed) {
    check(count >= 1, "corpus: dialogues: ", count, "; expected at least 1");
    static const Grammar grammar(dialogue_grammar_notation, "dialogue");
    GrammarDraws draws(seed, dialogue_purpose);
    std::vector<DialogueLines> dialogues;
    for (std::int64_t i = 0; i < count; ++i) {
        std::string text;
        grammar.generate(text, std::ref(draws));
        DialogueLines& lines = dialogues.emplace_back();
        std::istringstream stream(text);
        for (std::string line; std::getline(stream, line);) lines.push_back(line);
        check(lines.size() % 2 == 0, "dialogue grammar: a question without an answer: ", text);
    }
    return dialogues;
}

std::string conversations_text(const std::vector<DialogueLines>& dialogues) {
    std::string text;
    for (const DialogueLines& lines : dialogues) {
        std::vector<JsonValue> messages;
        for (std::size_t i = 0; i < lines.size(); ++i)
            messages.push_back(
                JsonValue::object({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", lines[i]}}));
        text += JsonValue::object({{"messages", messages}}).dump() + '\n';
    }
    return text;
}

}  // namespace gradtile
