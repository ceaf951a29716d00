#pragma once
/// Chat templates: how a conversation's messages become one text.
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gradtile/core/enum_names.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

///     plain     "\nSystem: ...", "\nUser: ...", "\nAssistant: ..."; an answer ends where "\nUser:" follows
///     chatml    "<|im_start|>user\n...<|im_end|>\n"
///     llama3    "<|begin_of_text|>", then "<|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|>"; white
///               space around a message is removed
///     automatic chatml or llama3 if the tokenizer has all of its special tokens, else plain
enum class ChatTemplate { automatic, plain, chatml, llama3 };

template <>
struct EnumNames<ChatTemplate> {
    static constexpr std::array names = {std::pair{ChatTemplate::automatic, std::string_view("auto")},
                                         std::pair{ChatTemplate::plain, std::string_view("plain")},
                                         std::pair{ChatTemplate::chatml, std::string_view("chatml")},
                                         std::pair{ChatTemplate::llama3, std::string_view("llama3")}};
};

enum class ChatRole { system, user, assistant, tool };

template <>
struct EnumNames<ChatRole> {
    static constexpr std::array names = {std::pair{ChatRole::system, std::string_view("system")},
                                         std::pair{ChatRole::user, std::string_view("user")},
                                         std::pair{ChatRole::assistant, std::string_view("assistant")},
                                         std::pair{ChatRole::tool, std::string_view("tool")}};
};

/// A call of a function that an assistant's message requests.
struct ToolCall {
    std::string name;
    std::string arguments;  ///< a JSON text
};

struct ChatMessage {
    ChatRole role = ChatRole::user;
    std::string content;
    std::vector<ToolCall> tool_calls = {};  ///< written after the content
    std::optional<bool> train = {};         ///< whether the model learns it; empty: by its role (TrainOn)
};
using Conversation = std::vector<ChatMessage>;

/// Which tokens of a prompt with its completion, or of a conversation, are targets.
enum class TrainOn {
    answers,  ///< completions and the assistant's messages, with the text that ends each
    all       ///< every token that has one before it
};

template <>
struct EnumNames<TrainOn> {
    static constexpr std::array names = {std::pair{TrainOn::answers, std::string_view("answers")},
                                         std::pair{TrainOn::all, std::string_view("all")}};
};

/// Returns the template that `automatic` stands for.
ChatTemplate resolved_template(ChatTemplate chat_template, const Tokenizer& tokenizer);
/// Returns the tokens that end a text: the token that ends an answer in the template, if there is one, and
/// then the tokenizer's special tokens that end a text or an answer, such as <|endoftext|>. `automatic`
/// stands for no template.
std::vector<std::int32_t> end_tokens_of(const Tokenizer& tokenizer, ChatTemplate chat_template);
/// Returns all texts that the template writes around messages of people and models, so that a character
/// tokenizer knows them.
std::string template_alphabet(ChatTemplate chat_template);
/// Returns the text that the template writes before a message with this role.
std::string role_header(ChatTemplate chat_template, ChatRole role);
/// Returns a message's content with its tool calls: {"name": ..., "arguments": ...} for each, between
/// <tool_call> and </tool_call> (plain, chatml); {"name": ..., "parameters": ...} (llama3).
std::string message_text(const ChatMessage& message, ChatTemplate chat_template);

/// A document as tokens.
struct EncodedDocument {
    std::vector<std::int32_t> ids;
    /// For each token: whether the model is trained to predict it. Empty: all tokens are targets.
    std::vector<bool> is_target;
};

/// Writes conversations as tokens. Each message and each template text is encoded separately, so chat and
/// training get the same tokens. A template text becomes a special token if the tokenizer has this token;
/// otherwise it is encoded as ordinary text. A message's text never becomes a special token.
class ChatFormat {
  public:
    ChatFormat(ChatTemplate chat_template, Tokenizer tokenizer);

    ChatTemplate chat_template() const { return template_; }
    /// The template's special tokens that the tokenizer lacks.
    std::vector<std::string> missing_tokens() const;

    /// Throws Error that begins with `source` when the tokenizer cannot encode a message.
    EncodedDocument encode(std::span<const ChatMessage> messages, std::string_view source,
                           TrainOn train_on = TrainOn::answers) const;
    /// Returns the tokens after which the assistant's answer follows; the last message is a user's.
    std::vector<std::int32_t> prompt(std::span<const ChatMessage> messages, std::string_view source) const;
    /// The template's texts that end an answer. A token from end_tokens_of() ends it, too.
    std::vector<std::string> stop_texts() const;
    /// Returns the message in a generated text: without the blank that follows "Assistant:".
    std::string_view message_of(std::string_view generated) const;

  private:
    void add(EncodedDocument& to, std::string_view text, bool is_target, SpecialTokens special,
             std::string_view source) const;
    void add_turn(EncodedDocument& to, const ChatMessage& message, std::string_view source,
                  TrainOn train_on) const;

    ChatTemplate template_;
    Tokenizer tokenizer_;
};

}  // namespace gradtile
