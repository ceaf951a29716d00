#include <gradtile/train/imported_text.h>

#include <nlohmann/json.hpp>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

constexpr const char* imported_text_key = "imported_text";

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
    for (const std::int32_t id : text.end_tokens)
        check(id >= 0 && id < vocabulary, source, ": ", imported_text_key, ": end token ", id,
              "; the vocabulary is ", vocabulary);
    return text;
}

}  // namespace gradtile
