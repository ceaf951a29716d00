#pragma once
/// Conversation files: JSON Lines, each line {"messages": [{"role": "user", "content": "..."}, ...]}.
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/train/data/chat_template.h>
#include <gradtile/train/data/examples.h>

namespace gradtile {

using Conversation = std::vector<ChatMessage>;

/// Returns whether the name ends in .jsonl: such files are read as conversations.
bool is_conversation_file(std::string_view path);

/// Returns the conversations in a file's text. Roles are system, user and assistant, in any order; empty
/// lines and other members are skipped. Throws Error "SOURCE: line N: ..." when a line is not such an object,
/// and when there is no conversation.
std::vector<Conversation> parse_conversations(std::string_view text, std::string_view source);

/// Several conversations' tokens, one conversation after the other.
struct EncodedConversations {
    std::vector<std::int32_t> ids;
    Examples examples;
};
/// Throws Error that begins with `source` and the conversation's number.
EncodedConversations encode_conversations(const std::vector<Conversation>& conversations,
                                          const ChatFormat& format, std::string_view source);

/// Returns all texts in the conversations and the template, to make a tokenizer from.
std::string text_of(const std::vector<Conversation>& conversations, ChatTemplate chat_template);

}  // namespace gradtile
