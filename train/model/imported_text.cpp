#include <gradtile/train/model/imported_text.h>

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include <gradtile/core/check.h>
#include <gradtile/core/text/message.h>

namespace gradtile {
namespace {

constexpr const char* imported_text_key = "imported_text";
constexpr std::array<std::string_view, 6> file_names{"config.json",           "generation_config.json",
                                                     "tokenizer_config.json", "special_tokens_map.json",
                                                     "added_tokens.json",     "chat_template.jinja"};

}  // namespace

void add_imported_text(JsonValue& data, const ImportedText& text) {
    if (text.empty()) return;
    (*data)[imported_text_key] = {{"end_tokens", text.end_tokens},
                                  {"files", text.files},
                                  {"has_unknown_template", text.has_unknown_template}};
}

ImportedText imported_text_of(const Checkpoint& checkpoint, std::int64_t vocabulary,
                              const std::string& source) {
    const auto found = checkpoint.data->find(imported_text_key);
    if (found == checkpoint.data->end()) return {};
    ImportedText text;
    try {
        text = {.end_tokens = found->at("end_tokens").get<std::vector<std::int32_t>>(),
                .files = found->at("files").get<std::map<std::string, std::string>>(),
                .has_unknown_template = found->at("has_unknown_template").get<bool>()};
    } catch (const nlohmann::json::exception& error) {
        throw Error(concat(source, ": ", imported_text_key, ": ", reason_of(error)));
    }
    // Export writes files of these names.
    for (const auto& [name, content] : text.files)
        check(std::ranges::find(file_names, name) != file_names.end(), source, ": ", imported_text_key,
              ": file '", printable_name(name), "'; expected config.json or another file of an import");
    for (const std::int32_t id : text.end_tokens)
        check(id >= 0 && id < vocabulary, source, ": ", imported_text_key, ": end token ", id,
              "; the vocabulary is ", vocabulary);
    return text;
}

}  // namespace gradtile
