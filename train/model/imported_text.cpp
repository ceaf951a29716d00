#include <gradtile/train/model/language_model.h>

#include <algorithm>
#include <array>

#include <gradtile/core/check.h>
#include <gradtile/core/text/message.h>
#include <gradtile/core/text/with_source.h>

namespace gradtile {
namespace {

constexpr const char* imported_text_key = "imported_text";
constexpr std::array<std::string_view, 6> file_names{"config.json",           "generation_config.json",
                                                     "tokenizer_config.json", "special_tokens_map.json",
                                                     "added_tokens.json",     "chat_template.jinja"};

}  // namespace

void add_imported_text(JsonValue& data, const ImportedText& text) {
    if (text.empty()) return;
    JsonValue files = JsonValue::object();
    for (const auto& [name, content] : text.files) files.set(name, content);
    data.set(imported_text_key, JsonValue::object({{"end_tokens", text.end_tokens},
                                                   {"files", std::move(files)},
                                                   {"has_unknown_template", text.has_unknown_template}}));
}

ImportedText imported_text_of(const Checkpoint& checkpoint, std::int64_t vocabulary,
                              const std::string& source) {
    const JsonValue* const found = checkpoint.data.find(imported_text_key);
    if (!found) return {};
    ImportedText text;
    with_source(concat(source, ": ", imported_text_key), [&] {
        text = {.end_tokens = (*found)["end_tokens"].get<std::vector<std::int32_t>>(),
                .has_unknown_template = (*found)["has_unknown_template"].get<bool>()};
        for (const auto& [name, content] : (*found)["files"].items()) text.files[name] = content.text();
    });
    // Export writes files with these names.
    for (const auto& [name, content] : text.files)
        check(std::ranges::find(file_names, name) != file_names.end(), source, ": ", imported_text_key,
              ": file '", printable_name(name), "'; expected config.json or another file of an import");
    for (const std::int32_t id : text.end_tokens)
        check(id >= 0 && id < vocabulary, source, ": ", imported_text_key, ": end token ", id,
              "; the vocabulary is ", vocabulary);
    return text;
}

}  // namespace gradtile
