#include <gradtile/train/formats/import.h>

#include <filesystem>

#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/message.h>
#include <gradtile/train/formats/huggingface_config.h>
#include <gradtile/train/formats/internal/weight_files.h>
#include <gradtile/train/formats/llmc_model.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>
#include <gradtile/train/train_config.h>

namespace gradtile {
namespace {

namespace fs = std::filesystem;

constexpr const char* weights_name = "model.safetensors";

bool is_weights_file(const std::string& path) {
    return path.ends_with(".safetensors") || path.ends_with(".safetensors.index.json");
}

std::string weights_in(const fs::path& folder) {
    const fs::path whole = folder / weights_name, index = folder / concat(weights_name, ".index.json");
    if (exists(whole)) return whole.string();
    check(exists(index), folder.string(), ": has neither ", weights_name, " nor ", index.filename().string());
    return index.string();
}

ImportedModel read_huggingface(const std::string& weights) {
    const fs::path config_file = fs::path(weights).parent_path() / "config.json";
    check(exists(config_file), weights, ": has no config.json beside it");
    const HuggingFaceModel found = read_huggingface_config(
        parse_json(config_file_text(config_file.string()), config_file.string()), config_file.string());
    LoadedWeights loaded =
        read_weights(WeightFiles(weights), weight_mappings(found.layout, found.config), weights);
    const bool llama = found.layout == WeightLayout::huggingface_llama;
    return {
        .description = concat("Hugging Face ", llama ? "llama" : "gpt2", ", ", storage_dtype(loaded.dtype)),
        .config = found.config,
        .dtype = loaded.dtype,
        .parameters = std::move(loaded.parameters)};
}

std::optional<Tokenizer> tokenizer_beside(const fs::path& folder, const std::string& setting) {
    if (setting == "none") return std::nullopt;
    if (!setting.empty()) return load_tokenizer(setting);
    for (const char* const name : {"tokenizer.json", "vocab.json"}) {
        if (!exists(folder / name)) continue;
        try {
            return load_tokenizer((folder / name).string());
        } catch (const Error& error) {
            throw Error(concat(error.what(), "; --tokenizer none imports the weights without it"));
        }
    }
    return std::nullopt;
}

}  // namespace

ImportedModel import_model(const std::string& path, const ImportOptions& options) {
    check(fs::exists(path), path, ": no such file or directory");
    const bool is_folder = fs::is_directory(path);
    check(is_folder || is_weights_file(path) || path.ends_with(".bin"), path,
          ": expected a folder with config.json, a .safetensors file or its index, or llm.c's .bin");
    ImportedModel model = !is_folder && path.ends_with(".bin")
                              ? read_llmc_model(path)
                              : read_huggingface(is_folder ? weights_in(path) : path);
    model.tokenizer =
        tokenizer_beside(is_folder ? fs::path(path) : fs::path(path).parent_path(), options.tokenizer);
    check(!model.tokenizer || model.tokenizer->vocab_size() <= model.config.vocabulary, path,
          ": its tokenizer has ", model.tokenizer ? model.tokenizer->vocab_size() : 0,
          " ids, but the model's vocabulary is ", model.config.vocabulary);
    return model;
}

}  // namespace gradtile
