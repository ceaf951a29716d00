#include <gradtile/train/data/chat_jinja.h>

#include <gradtile/core/check.h>

namespace gradtile {

std::string_view trimmed(std::string_view text) {
    constexpr std::string_view white = " \t\n\v\f\r";
    const std::size_t first = text.find_first_not_of(white);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(white) - first + 1);
}

std::string jinja_of(ChatTemplate chat_template) {
    switch (chat_template) {
        case ChatTemplate::plain:
            return R"({% for message in messages %}{{ '\n' + message['role'] | capitalize + ': ' + )"
                   R"(message['content'] }}{% endfor %})"
                   R"({% if add_generation_prompt %}{{ '\nAssistant:' }}{% endif %})";
        case ChatTemplate::chatml:
            // The text that libraries for ChatML models write.
            return R"({% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + )"
                   R"(message['content'] + '<|im_end|>' + '\n'}}{% endfor %})"
                   R"({% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";
        case ChatTemplate::llama3:
            // The publisher's template for Llama 3.
            return R"({% set loop_messages = messages %}{% for message in loop_messages %})"
                   R"({% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ )"
                   R"(message['content'] | trim + '<|eot_id|>' %})"
                   R"({% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %})"
                   R"({{ content }}{% endfor %}{% if add_generation_prompt %})"
                   R"({{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})";
        case ChatTemplate::automatic:
            break;
    }
    throw Error("chat template: auto is not resolved");
}

std::optional<ChatTemplate> template_of_jinja(std::string_view text) {
    for (const ChatTemplate known : {ChatTemplate::plain, ChatTemplate::chatml, ChatTemplate::llama3})
        if (trimmed(text) == trimmed(jinja_of(known))) return known;
    return std::nullopt;
}

}  // namespace gradtile
