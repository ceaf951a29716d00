#include <gradtile/train/data/conversation_file.h>

#include <gradtile/core/check.h>
#include <gradtile/train/data/json_lines.h>

namespace gradtile {
namespace {

const std::string& text_member(const JsonValue& object, const char* name, const std::string& where) {
    check(object.contains(name) && object[name].is_string(), where,
          ": expected an object with the texts role and content");
    return object[name].text();
}

Conversation conversation_of(const JsonValue& line, const std::string& where) {
    check(line.contains("messages") && line["messages"].is_array(), where,
          ": expected an object with an array named messages (a .jsonl file holds conversations)");
    const JsonValue& messages = line["messages"];
    check(messages.size() > 0, where, ": messages is empty");
    Conversation conversation;
    conversation.reserve(messages.size());
    for (std::size_t i = 0; i < messages.size(); ++i) {
        const std::string here = concat(where, ": message ", i + 1);
        const auto role = enum_named<ChatRole>(text_member(messages[i], "role", here), here + ": role");
        conversation.push_back({role, text_member(messages[i], "content", here)});
    }
    return conversation;
}

}  // namespace

bool is_conversation_file(std::string_view path) {
    return path.ends_with(".jsonl");
}

std::vector<Conversation> parse_conversations(std::string_view text, std::string_view source) {
    std::vector<Conversation> conversations;
    for_each_json_line(text, source, [&](const JsonValue& line, const std::string& where) {
        conversations.push_back(conversation_of(line, where));
    });
    check(!conversations.empty(), source, ": has no conversation");
    return conversations;
}

EncodedConversations encode_conversations(const std::vector<Conversation>& conversations,
                                          const ChatFormat& format, std::string_view source) {
    EncodedConversations all;
    for (std::size_t i = 0; i < conversations.size(); ++i) {
        const EncodedConversation one =
            format.encode(conversations[i], concat(source, ": conversation ", i + 1));
        all.ids.insert(all.ids.end(), one.ids.begin(), one.ids.end());
        std::vector<bool>& is_target = all.examples.is_target;
        is_target.insert(is_target.end(), one.is_target.begin(), one.is_target.end());
        all.examples.begins.push_back(std::ssize(all.ids));
    }
    return all;
}

std::string text_of(const std::vector<Conversation>& conversations, ChatTemplate chat_template) {
    std::string text = template_alphabet(chat_template);
    for (const Conversation& conversation : conversations)
        for (const ChatMessage& message : conversation) text += message.content;
    return text;
}

}  // namespace gradtile
