#pragma once
/// Chat templates in Jinja, the language in which transformers and llama.cpp read them.
#include <optional>
#include <string>
#include <string_view>

#include <gradtile/train/data/chat_template.h>

namespace gradtile {

/// Returns the template as text for tokenizer_config.json, chat_template.jinja and GGUF. The tokens equal
/// ChatFormat::prompt()'s, unless a message begins or ends with white space that the tokenizer joins with the
/// template's text. `chat_template` is not `automatic`.
std::string jinja_of(ChatTemplate chat_template);

/// Returns the template for which jinja_of() returns this text; nullopt for any other text.
std::optional<ChatTemplate> template_of_jinja(std::string_view text);

/// Returns the text without white space at both ends, as Jinja's filter `trim` does for ASCII.
std::string_view trimmed(std::string_view text);

}  // namespace gradtile
