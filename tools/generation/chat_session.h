#pragma once
/// A conversation between a user and a model.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/tools/generation/sampler.h>
#include <gradtile/train/data/chat_template.h>
#include <gradtile/train/model/language_model.h>

namespace gradtile {

struct ChatOptions {
    /// automatic: the template that the model was trained with, see LanguageModel
    ChatTemplate chat_template = ChatTemplate::automatic;
    std::string system{};  ///< the system message; empty: none
    /// `tokens` is the largest token count per answer. `prompt` is not used.
    SampleOptions sampling{};
};

struct ChatAnswer {
    enum class End {
        turn,        ///< the model generated the text that ends an answer
        stop_text,   ///< the answer contains one of ChatOptions::sampling.stop
        tokens,      ///< the answer has ChatOptions::sampling.tokens tokens
        context,     ///< the context is full, and no older message is left to drop
        interrupted  ///< the caller interrupted the answer
    };
    std::string text{};
    End end = End::tokens;
    std::int64_t dropped_messages = 0;  ///< old messages that were dropped to make room
};

/// The model sees the system message and as much history as has room. When the context is full, the oldest
/// user's turn is dropped with its answer; a new answer begins with at least a quarter of the context free,
/// if possible.
class ChatSession {
  public:
    /// Keeps a reference to the model. Throws Error when the model has no tokenizer, or when the tokenizer
    /// cannot encode the template or the system message, which every prompt contains.
    ChatSession(const LanguageModel& model, ChatOptions options);

    /// Answers a message. on_text receives the answer piece by piece, in whole characters; the answer ends
    /// when `interrupted` returns true, which is called before each token. Throws Error when the message does
    /// not fit the context or the tokenizer cannot encode it; the history is then unchanged.
    ChatAnswer answer(const std::string& message,
                      const std::function<void(std::string_view piece)>& on_text = {},
                      const std::function<bool()>& interrupted = {});

    /// The messages that the model sees, without the system message.
    const std::vector<ChatMessage>& history() const { return history_; }
    const ChatFormat& format() const { return format_; }

  private:
    std::vector<std::int32_t> prompt(const std::vector<ChatMessage>& history) const;
    bool drop_oldest_turn();
    std::vector<std::int32_t> prompt_for(const std::string& message, ChatAnswer& answer);

    std::int64_t context_;
    ChatOptions options_;
    ChatFormat format_;
    Tokenizer tokenizer_;
    std::vector<std::int32_t> end_tokens_;
    bool is_prefix_;  // ModelConfig::prefix
    TokenSampler sampler_;
    std::vector<ChatMessage> history_;
    std::uint64_t answers_ = 0;
};

}  // namespace gradtile
