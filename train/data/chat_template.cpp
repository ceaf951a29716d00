#include <gradtile/train/data/chat_template.h>

#include <algorithm>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/train/data/chat_jinja.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>

namespace gradtile {
namespace {

/// A template's texts. A message is written between its role's header and an end.
struct TemplateTexts {
    std::string begin{};  ///< the text that begins a conversation
    std::array<std::string, 4> headers{};
    std::string before_message{};
    std::string end{};        ///< ends a turn; after an assistant's turn it is a target
    std::string after_end{};  ///< the text after `end`; never a target
    std::vector<std::string> special_tokens{};
};

std::array<std::string, 4> headers_of(const std::string& before, const std::array<const char*, 4>& roles,
                                      const std::string& after) {
    return {before + roles[0] + after, before + roles[1] + after, before + roles[2] + after,
            before + roles[3] + after};
}

constexpr std::array role_words = {"system", "user", "assistant", "tool"};

TemplateTexts texts_of(ChatTemplate chat_template) {
    switch (chat_template) {
        case ChatTemplate::plain:
            return {.headers = headers_of("\n", {"System", "User", "Assistant", "Tool"}, ":"),
                    .before_message = " "};
        case ChatTemplate::chatml:
            return {.headers = headers_of("<|im_start|>", role_words, "\n"),
                    .end = "<|im_end|>",
                    .after_end = "\n",
                    .special_tokens = {"<|im_start|>", "<|im_end|>"}};
        case ChatTemplate::llama3:
            return {.begin = "<|begin_of_text|>",
                    .headers = headers_of("<|start_header_id|>", role_words, "<|end_header_id|>\n\n"),
                    .end = "<|eot_id|>",
                    .special_tokens = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                                       "<|eot_id|>"}};
        case ChatTemplate::automatic:
            break;
    }
    throw Error("chat template: auto is not resolved");
}

const std::string& header_of(const TemplateTexts& texts, ChatRole role) {
    return texts.headers[static_cast<std::size_t>(role)];
}

bool has_token(const Tokenizer& tokenizer, const std::string& text) {
    const BytePairEncoding* const encoding = tokenizer.byte_pair_encoding();
    return encoding != nullptr && encoding->added_token(text).has_value();
}

/// Returns whether the user's header that follows a message is a target: it ends an answer if the template
/// has no text for this.
bool ends_answer(const ChatMessage& message) {
    return message.role == ChatRole::assistant && message.train.value_or(true);
}

}  // namespace

ChatTemplate resolved_template(ChatTemplate chat_template, const Tokenizer& tokenizer) {
    if (chat_template != ChatTemplate::automatic) return chat_template;
    for (const ChatTemplate candidate : {ChatTemplate::chatml, ChatTemplate::llama3})
        if (ChatFormat(candidate, tokenizer).missing_tokens().empty()) return candidate;
    return ChatTemplate::plain;
}

std::vector<std::int32_t> end_tokens_of(const Tokenizer& tokenizer, ChatTemplate chat_template) {
    const BytePairEncoding* const encoding = tokenizer.byte_pair_encoding();
    if (!encoding) return {};
    std::vector<std::string> texts{"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>",
                                   "<|eom_id|>"};
    if (chat_template != ChatTemplate::automatic) texts.insert(texts.begin(), texts_of(chat_template).end);
    std::vector<std::int32_t> ids;
    for (const std::string& text : texts)
        if (const auto id = encoding->added_token(text); id && std::ranges::find(ids, *id) == ids.end())
            ids.push_back(*id);
    return ids;
}

std::string template_alphabet(ChatTemplate chat_template) {
    const TemplateTexts texts = texts_of(chat_template);
    std::string all = texts.begin + texts.before_message + texts.end + texts.after_end;
    for (const ChatRole role : {ChatRole::system, ChatRole::user, ChatRole::assistant})
        all += header_of(texts, role);
    return all;
}

std::string role_header(ChatTemplate chat_template, ChatRole role) {
    return header_of(texts_of(chat_template), role);
}

std::string message_text(const ChatMessage& message, ChatTemplate chat_template) {
    std::string text = message.content;
    for (const ToolCall& call : message.tool_calls) {
        const std::string name = JsonValue(call.name).dump();
        if (!text.empty()) text += '\n';
        if (chat_template == ChatTemplate::llama3) {
            text += concat("{\"name\": ", name, ", \"parameters\": ", call.arguments, '}');
        } else {
            text += concat("<tool_call>\n{\"name\": ", name, ", \"arguments\": ", call.arguments,
                           "}\n</tool_call>");
        }
    }
    return text;
}

ChatFormat::ChatFormat(ChatTemplate chat_template, Tokenizer tokenizer)
    : template_(resolved_template(chat_template, tokenizer)), tokenizer_(std::move(tokenizer)) {}

std::vector<std::string> ChatFormat::missing_tokens() const {
    std::vector<std::string> missing = texts_of(template_).special_tokens;
    std::erase_if(missing, [&](const std::string& text) { return has_token(tokenizer_, text); });
    return missing;
}

void ChatFormat::add(EncodedDocument& to, std::string_view text, bool is_target, SpecialTokens special,
                     std::string_view source) const {
    const std::vector<std::int32_t> ids =
        tokenizer_.encode(text, source, {.special_tokens = special, .threads = 1});
    to.ids.insert(to.ids.end(), ids.begin(), ids.end());
    to.is_target.resize(to.ids.size(), is_target);
}

void ChatFormat::add_turn(EncodedDocument& to, const ChatMessage& message, std::string_view source,
                          TrainOn train_on) const {
    const TemplateTexts texts = texts_of(template_);
    const std::string template_source = concat("chat template ", name_of(template_));
    const bool trains_all = train_on == TrainOn::all && message.train.value_or(true);
    const bool is_target = message.train.value_or(message.role == ChatRole::assistant || trains_all);
    const std::string written = message_text(message, template_);
    const std::string_view content =
        template_ == ChatTemplate::llama3 ? trimmed(written) : std::string_view(written);
    add(to, header_of(texts, message.role), trains_all, SpecialTokens::recognised, template_source);
    // With BPE, the blank and the message are encoded together, because a token may begin with the blank
    // before a word. With other tokenizers the message is encoded alone, so that the byte offset in an error
    // is an offset in the message.
    if (tokenizer_.kind() == TokenizerKind::bpe) {
        add(to, texts.before_message + std::string(content), is_target, SpecialTokens::as_text, source);
    } else {
        add(to, texts.before_message, is_target, SpecialTokens::as_text, source);
        add(to, content, is_target, SpecialTokens::as_text, source);
    }
    add(to, texts.end, is_target, SpecialTokens::recognised, template_source);
    add(to, texts.after_end, trains_all, SpecialTokens::recognised, template_source);
}

EncodedDocument ChatFormat::encode(std::span<const ChatMessage> messages, std::string_view source,
                                   TrainOn train_on) const {
    const TemplateTexts texts = texts_of(template_);
    const std::string template_source = concat("chat template ", name_of(template_));
    EncodedDocument all;
    add(all, texts.begin, train_on == TrainOn::all, SpecialTokens::recognised, template_source);
    for (std::size_t i = 0; i < messages.size(); ++i) {
        const std::size_t begin = all.ids.size();
        add_turn(all, messages[i], source, train_on);
        if (!texts.end.empty() || i == 0 || !ends_answer(messages[i - 1]) ||
            messages[i].role != ChatRole::user)
            continue;
        EncodedDocument header;
        add(header, header_of(texts, ChatRole::user), true, SpecialTokens::recognised, template_source);
        std::fill_n(all.is_target.begin() + static_cast<std::ptrdiff_t>(begin), header.ids.size(), true);
    }
    if (texts.end.empty() && !messages.empty() && messages.back().role == ChatRole::assistant)
        add(all, header_of(texts, ChatRole::user), ends_answer(messages.back()), SpecialTokens::recognised,
            template_source);
    if (!all.is_target.empty()) all.is_target.front() = false;
    return all;
}

std::vector<std::int32_t> ChatFormat::prompt(std::span<const ChatMessage> messages,
                                             std::string_view source) const {
    const TemplateTexts texts = texts_of(template_);
    const std::string template_source = concat("chat template ", name_of(template_));
    EncodedDocument all;
    add(all, texts.begin, false, SpecialTokens::recognised, template_source);
    for (const ChatMessage& message : messages) add_turn(all, message, source, TrainOn::answers);
    add(all, header_of(texts, ChatRole::assistant), false, SpecialTokens::recognised, template_source);
    return std::move(all.ids);
}

std::vector<std::string> ChatFormat::stop_texts() const {
    const TemplateTexts texts = texts_of(template_);
    std::vector<std::string> stops;
    if (texts.end.empty()) {
        stops.assign(texts.headers.begin(), texts.headers.end());
    } else {
        stops = {texts.end};
    }
    return stops;
}

std::string_view ChatFormat::message_of(std::string_view generated) const {
    const std::string before = texts_of(template_).before_message;
    if (!before.empty() && generated.starts_with(before)) generated.remove_prefix(before.size());
    return generated;
}

}  // namespace gradtile
