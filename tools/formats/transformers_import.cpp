// transformers: a folder with config.json, safetensors files and a tokenizer's files.
#include <algorithm>
#include <filesystem>
#include <iterator>

#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/formats/huggingface_config.h>
#include <gradtile/tools/formats/internal/formats.h>
#include <gradtile/tools/formats/internal/weight_files.h>
#include <gradtile/train/data/chat_jinja.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>
#include <gradtile/train/tokenizers/tokenizer_folder.h>

namespace gradtile {
namespace {

namespace fs = std::filesystem;

constexpr const char* weights_name = "model.safetensors";

bool is_weights_file(const std::string& path) {
    return path.ends_with(".safetensors") || path.ends_with(".safetensors.index.json");
}

std::string weights_in(const fs::path& folder) {
    const fs::path single_file = folder / weights_name, index = folder / concat(weights_name, ".index.json");
    if (exists(single_file)) return single_file.string();
    check(exists(index), folder.string(), ": has neither ", weights_name, " nor ", index.filename().string());
    return index.string();
}

/// Returns the tensor that holds a parameter's rows alone.
std::string tensor_of(const HuggingFaceModel& found, std::string_view module) {
    const std::vector<ModuleNames>& modules = found.family->tensors.others;
    const auto names = std::ranges::find(modules, module, &ModuleNames::own);
    return concat(names->theirs.front(), ".weight");
}

/// Returns the head's name if the files store a head that differs from the token embedding, although
/// config.json ties the two; else an empty name. transformers then uses the stored head.
std::string other_head(const WeightFiles& files, const HuggingFaceModel& found) {
    const std::string head = tensor_of(found, "head");
    if (!found.config.tied_head || !files.has(head)) return "";
    std::string embedding = tensor_of(found, "wte");
    if (!files.has(embedding)) embedding.erase(0, embedding.find('.') + 1);  // the prefix may be absent
    return files.has(embedding) && !files.are_equal(head, embedding) ? head : "";
}

/// transformers would load the adapters in addition to the weights.
void refuse_adapters(const fs::path& folder) {
    const fs::path file = folder / "adapter_config.json";
    check(!exists(file), file.string(),
          ": adapters are not supported; expected a model into which they are merged");
}

/// Reads a model and its text from transformers' files.
class HuggingFaceReader {
  public:
    HuggingFaceReader(std::string weights, const ImportOptions& options)
        : weights_(std::move(weights)),
          folder_(fs::path(weights_).parent_path()),
          options_(options),
          unknown_{.allowed = options.allow_unknown, .advice = "; --allow-unknown ignores it"} {}

    ImportedModel read() {
        const fs::path config_file = folder_ / "config.json";
        check(exists(config_file), weights_, ": has no config.json beside it");
        const std::string config_text = config_file_text(config_file.string());
        HuggingFaceModel found = read_huggingface_config(parse_json(config_text, config_file.string()),
                                                         config_file.string(), unknown_);
        set_context(found.config);
        const WeightFiles files(weights_);
        if (const std::string head = other_head(files, found); !head.empty()) {
            found.config.tied_head = false;
            model_.notes.push_back(concat(weights_, ": ", head,
                                          " differs from the token embedding, so it is ",
                                          "used, although config.json says tie_word_embeddings"));
        }
        LoadedWeights loaded =
            read_weights(files, weight_mappings(found.family->tensors, found.config), weights_,
                         {.dtype = dtype_of_run(options_.dtype), .on_progress = options_.on_progress});
        model_.description = concat("Hugging Face ", found.family->type, ", ", storage_dtype(loaded.dtype));
        model_.config = found.config;
        model_.dtype = loaded.dtype;
        model_.parameters = std::move(loaded.parameters);
        model_.text.files["config.json"] = config_text;
        read_tokenizer(found.tokenizer_class);
        read_ends(found.ends);
        for (const std::string& member : unknown_.found)
            model_.notes.push_back(concat(member, " has no known meaning and is ignored"));
        return std::move(model_);
    }

  private:
    void set_context(ModelConfig& config) {
        const RopeScaling& rope = config.rope_scaling;
        if (options_.context != 0) {
            check(!adds_embeddings(config.positions), "context: ", options_.context, ": the model has ",
                  config.context, " learned positions; expected 0");
            check(options_.context <= config.context, "context: ", options_.context, "; expected at most ",
                  config.context, ", the model's context");
            config.context = options_.context;
        }
        if (rope.kind == RopeKind::longrope && config.context > rope.original_context)
            model_.notes.push_back(concat(folder_.string(), ": longrope's long factors hold for every text; ",
                                          "transformers uses the short ones up to ", rope.original_context,
                                          " tokens, as `import --context ", rope.original_context, "` does"));
    }

    void read_tokenizer(const std::string& tokenizer_class) {
        if (options_.tokenizer == "none") return;
        if (!options_.tokenizer.empty()) {
            model_.tokenizer = load_tokenizer(options_.tokenizer);
            return;
        }
        TokenizerFolder found;
        try {
            found = load_tokenizer_folder(folder_.string(), tokenizer_class, unknown_);
        } catch (const Error& error) {
            throw Error(concat(error.what(), "; --tokenizer none imports the weights without it"));
        }
        model_.tokenizer = std::move(found.tokenizer);
        model_.text.files.merge(found.files);
        std::ranges::move(found.notes, std::back_inserter(model_.notes));
        if (!found.chat_template) return;
        const std::optional<ChatTemplate> known = template_of_jinja(*found.chat_template);
        model_.chat_template = known.value_or(ChatTemplate::automatic);
        model_.text.has_unknown_template = !known;
        if (!known)
            model_.notes.push_back(concat(folder_.string(),
                                          ": the chat template is none of plain, chatml and "
                                          "llama3; `chat` needs --chat-template"));
    }

    /// Reads the tokens that end a text. As in transformers, generation_config.json counts before
    /// config.json.
    void read_ends(TextEnds ends) {
        const fs::path file = folder_ / "generation_config.json";
        std::string source = (folder_ / "config.json").string();
        note_unknown_ends(ends, source);
        if (exists(file)) {
            source = file.string();
            const std::string text = config_file_text(source);
            ends = read_generation_config(parse_json(text, source), source, unknown_);
            note_unknown_ends(ends, source);
            model_.text.files["generation_config.json"] = text;
        }
        for (const std::int32_t id : ends.tokens.value_or(std::vector<std::int32_t>()))
            if (is_token(id)) model_.text.end_tokens.push_back(id);
        if (!model_.tokenizer) return;
        std::vector<std::string> known;
        if (model_.chat_template != ChatTemplate::automatic)
            known = ChatFormat(model_.chat_template, *model_.tokenizer).stop_texts();
        for (const std::string& text : ends.texts)
            check(std::ranges::find(known, text) != known.end(), source, ": stop_strings: '",
                  printable_name(text), "' is not supported; expected texts of the chat template");
    }

    bool is_token(std::int32_t id) const { return id >= 0 && id < model_.config.vocabulary; }

    /// Published configs name tokens that the vocabulary does not have, or -1: german-gpt2 has 52000 tokens
    /// and ends texts at token 52000 (github.com/stefan-it/german-gpt2, issue 9). Such a token is never
    /// drawn, so transformers ignores it with a warning, too.
    void note_unknown_ends(const TextEnds& ends, const std::string& source) {
        std::vector<std::int32_t> unknown = ends.tokens.value_or(std::vector<std::int32_t>());
        std::erase_if(unknown, [&](std::int32_t id) { return is_token(id); });
        if (unknown.empty()) return;
        const std::string others = unknown.size() == 1 ? "" : concat(" and ", unknown.size() - 1, " more");
        model_.notes.push_back(concat(source, ": eos_token_id: ", unknown.front(), others,
                                      "; the model's ids are 0 to ", model_.config.vocabulary - 1,
                                      ", so no text ends there"));
    }

    std::string weights_;
    fs::path folder_;
    const ImportOptions& options_;
    UnknownMembers unknown_;
    ImportedModel model_;
};

}  // namespace

bool is_transformers(const std::string& path) {
    return fs::is_directory(path) || is_weights_file(path);
}

ImportedModel import_transformers(const std::string& path, const ImportOptions& options) {
    const bool is_folder = fs::is_directory(path);
    refuse_adapters(is_folder ? fs::path(path) : fs::path(path).parent_path());
    return HuggingFaceReader(is_folder ? weights_in(path) : path, options).read();
}

}  // namespace gradtile
