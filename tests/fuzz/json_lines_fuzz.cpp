// Fuzzes the readers for conversations and for multiple-choice questions: any bytes give one Error, or
// conversations and questions that the program can use.
#include <string_view>

#include "memory_file.h"

#include <gradtile/core/check.h>
#include <gradtile/tools/evaluation/multiple_choice.h>
#include <gradtile/train/data/conversation_file.h>
#include <gradtile/train/data/examples.h>

namespace {

using namespace gradtile;
using fuzz::require;

void read_conversations(std::string_view text) {
    const std::vector<Conversation> conversations = parse_conversations(text, "input");
    require(!conversations.empty());
    for (const ChatTemplate chat_template :
         {ChatTemplate::plain, ChatTemplate::chatml, ChatTemplate::llama3}) {
        const EncodedConversations encoded =
            encode_conversations(conversations, ChatFormat(chat_template, Tokenizer::bytes()), "input");
        const Examples& examples = encoded.examples;
        require(examples.count() == std::ssize(conversations));
        require(examples.begins.back() == std::ssize(encoded.ids));
        for (const std::int64_t context : {1, 7, 1000}) {
            for (const Packing& packing : {Packing{}, Packing{{DocumentRule::Kind::examples}, 4}}) {
                std::int64_t targets = 0;
                for (const TokenWindow& window : windows_of(examples, context, packing)) {
                    require(window.begin >= 0 && window.begin < window.end &&
                            window.end - window.begin <= context && window.end < std::ssize(encoded.ids));
                    for (std::int64_t i = window.begin + 1; i <= window.end; ++i)
                        targets += examples.is_target[static_cast<std::size_t>(i)];
                }
                require(targets == examples.targets());
            }
        }
    }
}

void read_questions(std::string_view text) {
    for (const ChoiceQuestion& question : parse_choice_questions(text, "input")) {
        require(!question.context.empty() && question.choices.size() >= 2);
        require(question.label < question.choices.size());
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    for (void (*const read)(std::string_view) : {read_conversations, read_questions}) {
        try {
            read(text);
        } catch (const Error&) {
            // The reader refused the file.
        }
    }
    return 0;
}
