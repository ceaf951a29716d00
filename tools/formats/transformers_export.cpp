// transformers: a folder with model.safetensors, config.json and tokenizer.json.
#include <algorithm>
#include <map>

#include <gradtile/tools/formats/internal/formats.h>
#include <gradtile/tools/formats/internal/model_export.h>
#include <gradtile/tools/formats/internal/new_files.h>
#include <gradtile/train/data/chat_template.h>

namespace gradtile {
namespace {

JsonValue tokenizer_config(const ModelExport& model) {
    JsonValue value = JsonValue::object({{"tokenizer_class", "PreTrainedTokenizerFast"},
                                         {"clean_up_tokenization_spaces", false},
                                         {"model_max_length", model.config().model.context}});
    if (model.tokenizer()->file().name == "tokenizer.model") {
        value.set("tokenizer_class", "LlamaTokenizer");  // reads SentencePiece's models
        value.set("add_bos_token", !model.encoding()->vocabulary().before.empty());
        value.set("add_eos_token", !model.encoding()->vocabulary().after.empty());
    }
    const TextTokens tokens = model.text_tokens();
    const auto name = [&](const char* member, std::int32_t id) {
        for (const AddedToken& token : model.encoding()->vocabulary().added)
            if (token.id == id) value.set(member, token.text);
    };
    if (tokens.begin) name("bos_token", *tokens.begin);
    if (!tokens.end.empty()) name("eos_token", tokens.end.front());
    return value;
}

/// Returns where `generate` begins and ends texts. A chat-template text that is no token is a stop string.
JsonValue generation_config(const ModelExport& model) {
    JsonValue value = JsonValue::object();
    const TextTokens tokens = model.text_tokens();
    if (tokens.begin) value.set("bos_token_id", *tokens.begin);
    if (!tokens.end.empty()) value.set("eos_token_id", tokens.end);
    if (model.has_template() && !model.turn_end())
        value.set("stop_strings", ChatFormat(model.config().chat_template, *model.tokenizer()).stop_texts());
    return value;
}

/// Returns the folder's files, except the weights. Imported files are written unchanged.
std::map<std::string, std::string> folder_texts(ModelExport& model) {
    std::map<std::string, std::string> texts = model.imported().files;
    const JsonValue config =
        huggingface_config_of(model.family(), model.config().model, model.config().training, model.dtype(),
                              model.text_tokens(), model.source());
    std::optional<std::string> kept;
    if (texts.contains("config.json"))
        kept = kept_config_of(texts["config.json"], model.config().model, model.dtype(),
                              concat(model.source(), ": config.json"));
    texts["config.json"] = kept ? *kept : config.dump(2) + '\n';
    if (!model.encoding()) {
        model.note_lost_tokenizer("tokenizer.json");
        return texts;
    }
    const TokenizerSource tokenizer = model.tokenizer()->file();
    texts[tokenizer.name] = tokenizer.content;
    // Without this file transformers chooses a class by the model's type, which has its own pattern.
    if (!texts.contains("tokenizer_config.json"))
        texts["tokenizer_config.json"] = tokenizer_config(model).dump(2) + '\n';
    if (!model.imported().empty()) return texts;
    if (const auto jinja = model.chat_jinja()) texts["chat_template.jinja"] = *jinja;
    if (const JsonValue generation = generation_config(model); generation.size() > 0)
        texts["generation_config.json"] = generation.dump(2) + '\n';
    return texts;
}

}  // namespace

std::vector<std::string> export_transformers(ModelExport& model) {
    const std::map<std::string, std::string> texts = folder_texts(model);
    std::vector<NamedTensor> tensors = model.tensors(model.family().tensors);
    // The safetensors library's order, so that exporting an imported file reproduces its bytes.
    std::ranges::sort(tensors, {}, &NamedTensor::first);
    NewFiles files(model.out());
    // Every file is opened first, so that one that exists is named before the weights are written.
    TensorWriter& weights = files.add("model.safetensors");
    for (const auto& [name, text] : texts) files.add_text(name, text);
    if (!texts.contains("tokenizer.json"))
        files.require_absent("tokenizer.json");  // a tokenizer from another model
    // The library transformers reads only files whose metadata has "format": "pt".
    write_safetensors(weights, tensors, {{"format", "pt"}});
    return files.commit();
}

}  // namespace gradtile
