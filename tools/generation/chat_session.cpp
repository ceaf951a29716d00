#include <gradtile/tools/generation/chat_session.h>

#include <algorithm>

#include <gradtile/tools/generation/stop_texts.h>
#include <gradtile/train/tokenizers/streaming_decoder.h>

namespace gradtile {
namespace {

ChatFormat chat_format(const LanguageModel& model, const ChatOptions& options) {
    const bool own = options.chat_template == ChatTemplate::automatic;
    check(
        !own || !model.imported_text.has_unknown_template,
        "chat: the imported model has a chat template of its own, which is none of plain, chatml and llama3; "
        "expected --chat-template with the one that comes closest");
    return {own ? model.chat_template : options.chat_template, tokenizer_of(model, "chat")};
}

/// An answer that grows token by token.
class GrowingAnswer {
  public:
    GrowingAnswer(const ChatFormat& format, const Tokenizer& tokenizer,
                  const std::vector<std::int32_t>& end_tokens, const std::vector<std::string>& stop,
                  const std::function<void(std::string_view)>& on_text)
        : format_(format),
          decoder_(tokenizer),
          end_tokens_(end_tokens),
          template_stops_(format.stop_texts()),
          user_stops_(stop),
          on_text_(on_text) {}

    void add_token(std::int32_t token) {
        has_end_token_ = std::ranges::find(end_tokens_, token) != end_tokens_.end();
        if (!has_end_token_) add(template_stops_.next(decoder_.next(token)));
    }
    void finish() {
        add(template_stops_.next(decoder_.finish()));
        add(template_stops_.finish());
        emit(user_stops_.finish());
    }
    bool turn_ended() const { return has_end_token_ || template_stops_.found(); }
    bool stopped() const { return user_stops_.found(); }
    std::string take_text() { return std::move(text_); }

  private:
    void add(const std::string& piece) { emit(user_stops_.next(piece)); }
    void emit(std::string_view piece) {
        if (text_.empty() && !begun_) {
            begun_ = !piece.empty();
            piece = format_.message_of(piece);
        }
        text_ += piece;
        if (on_text_ && !piece.empty()) on_text_(piece);
    }

    const ChatFormat& format_;
    StreamingDecoder decoder_;
    const std::vector<std::int32_t>& end_tokens_;
    bool has_end_token_ = false;
    StopTexts template_stops_, user_stops_;
    const std::function<void(std::string_view)>& on_text_;
    std::string text_;
    bool begun_ = false;
};

}  // namespace

ChatSession::ChatSession(const LanguageModel& model, ChatOptions options)
    : context_(model.transformer.config.context),
      options_(std::move(options)),
      format_(chat_format(model, options_)),
      tokenizer_(tokenizer_of(model, "chat")),
      end_tokens_(end_tokens_of(model)),
      is_prefix_(model.transformer.config.prefix),
      sampler_(model, options_.sampling) {
    prompt({{ChatRole::user, ""}});  // throws where every message would be refused
}

/// The tokens before the next answer.
std::vector<std::int32_t> ChatSession::prompt(const std::vector<ChatMessage>& history) const {
    std::vector<ChatMessage> messages;
    if (!options_.system.empty()) messages.push_back({ChatRole::system, options_.system});
    messages.insert(messages.end(), history.begin(), history.end());
    return format_.prompt(messages, "message");
}

/// Drops the first message and all messages up to the user's next message. Returns false if there is no other
/// user's message.
bool ChatSession::drop_oldest_turn() {
    if (history_.empty()) return false;
    const auto next = std::find_if(history_.begin() + 1, history_.end(),
                                   [](const ChatMessage& message) { return message.role == ChatRole::user; });
    if (next == history_.end()) return false;
    history_.erase(history_.begin(), next);
    return true;
}

/// Adds the message to the history and returns the tokens before its answer.
std::vector<std::int32_t> ChatSession::prompt_for(const std::string& message, ChatAnswer& answer) {
    const std::vector<ChatMessage> before = history_;
    try {
        history_.push_back({ChatRole::user, message});
        std::vector<std::int32_t> tokens = prompt(history_);
        while (std::ssize(tokens) > context_ - context_ / 4 && drop_oldest_turn()) tokens = prompt(history_);
        check(std::ssize(tokens) <= context_, "the message: ", std::ssize(tokens),
              " tokens with its template", options_.system.empty() ? "" : " and the system message",
              "; the context of the model is ", context_);
        answer.dropped_messages = std::ssize(before) + 1 - std::ssize(history_);
        return tokens;
    } catch (...) {
        history_ = before;
        throw;
    }
}

ChatAnswer ChatSession::answer(const std::string& message,
                               const std::function<void(std::string_view)>& on_text,
                               const std::function<bool()>& interrupted) {
    ChatAnswer answer;
    std::vector<std::int32_t> text = prompt_for(message, answer), drawn;
    const std::uint64_t number = answers_++;
    if (is_prefix_) sampler_.begin_text(0);  // all messages are the answer's prompt
    GrowingAnswer growing(format_, tokenizer_, end_tokens_, options_.sampling.stop, on_text);
    using End = ChatAnswer::End;
    while (!growing.turn_ended() && !growing.stopped() && std::ssize(drawn) < options_.sampling.tokens) {
        if (interrupted && interrupted()) {
            answer.end = End::interrupted;
            break;
        }
        const std::size_t messages = history_.size();
        while (std::ssize(text) > context_ && !is_prefix_ && drop_oldest_turn()) {
            text = prompt(history_);
            text.insert(text.end(), drawn.begin(), drawn.end());
        }
        answer.dropped_messages += static_cast<std::int64_t>(messages - history_.size());
        if (std::ssize(text) > context_) {
            answer.end = End::context;
            break;
        }
        const GrowingText read{.tokens = text, .number = number, .drawn = std::ssize(drawn)};
        text.push_back(sampler_.next({&read, 1}).front());
        drawn.push_back(text.back());
        growing.add_token(text.back());
    }
    growing.finish();
    if (growing.stopped()) answer.end = End::stop_text;
    if (growing.turn_ended()) answer.end = End::turn;
    answer.text = growing.take_text();
    history_.push_back({ChatRole::assistant, answer.text});
    return answer;
}

}  // namespace gradtile
