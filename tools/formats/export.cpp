#include <gradtile/tools/formats/export.h>

#include <algorithm>
#include <map>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/tools/formats/gguf_metadata.h>
#include <gradtile/tools/formats/gguf_writer.h>
#include <gradtile/tools/formats/huggingface_config.h>
#include <gradtile/tools/formats/internal/new_files.h>
#include <gradtile/tools/formats/internal/weight_names.h>
#include <gradtile/tools/formats/safetensors.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/data/chat_jinja.h>
#include <gradtile/train/model/language_model.h>
#include <gradtile/train/model/merged_adapters.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/tokenizer_folder.h>

namespace gradtile {
namespace {

namespace fs = std::filesystem;

DType dtype_of_export(ExportDType dtype, TrainDType run_dtype) {
    switch (dtype) {
        case ExportDType::run:
            return storage_dtype(run_dtype);
        case ExportDType::f32:
            return DType::f32;
        case ExportDType::bf16:
            return DType::bf16;
        case ExportDType::f16:
            return DType::f16;
    }
    throw Error("export: unknown dtype");
}

/// Exports one model. The weights are converted to the export dtype.
class Exporter {
  public:
    Exporter(const Checkpoint& checkpoint, std::string source, const ExportOptions& options)
        : checkpoint_(checkpoint), source_(std::move(source)), options_(options) {
        apply_json(config_, checkpoint.config, source_);
        check_model(config_.model, checkpoint, source_);
        dtype_ = dtype_of_export(options.dtype, config_.dtype);
        tokenizer_ = tokenizer_of(checkpoint, source_);
        imported_ = imported_text_of(checkpoint, config_.model.vocabulary, source_);
        const auto kept = imported_.files.find("config.json");
        family_ = kept == imported_.files.end()
                      ? &family_of(config_.model, std::nullopt, source_)
                      : &family_of(config_.model, kept->second, concat(source_, ": config.json"));
    }

    ExportResult write_safetensors_folder() {
        const std::map<std::string, std::string> texts = folder_texts();
        std::vector<NamedTensor> tensors = tensors_in(family_->tensors, Target::safetensors);
        // The safetensors library's order, so that exporting an imported file reproduces its bytes.
        std::ranges::sort(tensors, {}, &NamedTensor::first);
        NewFiles files(options_.out);
        // Every file is opened first, so that one that exists is named before the weights are written.
        TensorWriter& weights = files.add("model.safetensors");
        for (const auto& [name, text] : texts) files.add_text(name, text);
        if (!texts.contains("tokenizer.json"))
            files.require_absent("tokenizer.json");  // a tokenizer from another model
        // The library transformers reads only files whose metadata has "format": "pt".
        write_safetensors(weights, tensors, {{"format", "pt"}});
        result_.files = files.commit();
        return std::move(result_);
    }

    ExportResult write_gguf_file() {
        GgufFile file{.metadata = gguf_model_metadata(*family_, config_.model, dtype_, source_)};
        const GgufMetadata tokenizer_metadata =
            gguf_tokenizer_metadata(tokenizer_ ? &*tokenizer_ : nullptr, config_.model.vocabulary,
                                    {text_tokens(), turn_end(), chat_jinja()}, source_);
        file.metadata.insert(file.metadata.end(), tokenizer_metadata.begin(), tokenizer_metadata.end());
        check(!exists(fs::symlink_status(options_.out)), options_.out, ": exists; choose another --out");
        file.tensors = tensors_in(gguf_tensors(family_->gguf), Target::gguf);
        std::ranges::move(gguf_rope_tensors(config_.model), std::back_inserter(file.tensors));
        if (!encoding()) note_tokenizer("GGUF");
        if (encoding()) note_text_of_gguf(encoding()->vocabulary());
        if (config_.model.activation == Activation::gelu)
            result_.notes.push_back(
                "llama.cpp computes GELU's tanh approximation, so logits differ by some 1e-3");
        write_gguf(options_.out, file);
        result_.files.push_back(options_.out);
        return std::move(result_);
    }

  private:
    const BytePairEncoding* encoding() const {
        return tokenizer_ ? tokenizer_->byte_pair_encoding() : nullptr;
    }

    /// Returns the folder's files, except the weights. Imported files are written unchanged.
    std::map<std::string, std::string> folder_texts() {
        std::map<std::string, std::string> texts = imported_.files;
        const JsonValue config =
            huggingface_config_of(*family_, config_.model, config_.training, dtype_, text_tokens(), source_);
        std::optional<std::string> kept;
        if (texts.contains("config.json"))
            kept =
                kept_config_of(texts["config.json"], config_.model, dtype_, concat(source_, ": config.json"));
        texts["config.json"] = kept ? *kept : config.dump(2) + '\n';
        if (!encoding()) {
            note_tokenizer("tokenizer.json");
            return texts;
        }
        const TokenizerSource tokenizer = tokenizer_->file();
        texts[tokenizer.name] = tokenizer.content;
        // Without this file transformers chooses a class by the model's type, which has its own pattern.
        if (!texts.contains("tokenizer_config.json"))
            texts["tokenizer_config.json"] = tokenizer_config().dump(2) + '\n';
        if (!imported_.empty()) return texts;
        if (const auto jinja = chat_jinja()) texts["chat_template.jinja"] = *jinja;
        if (const JsonValue generation = generation_config(); generation.size() > 0)
            texts["generation_config.json"] = generation.dump(2) + '\n';
        return texts;
    }

    TextTokens text_tokens() const {
        TextTokens tokens{.end = end_tokens_of(imported_, tokenizer_, config_.chat_template)};
        if (!encoding()) return tokens;
        if (!encoding()->vocabulary().before.empty()) tokens.begin = encoding()->vocabulary().before.front();
        for (const char* const text : {"<|begin_of_text|>", "<|endoftext|>"})
            if (!tokens.begin) tokens.begin = encoding()->added_token(text);
        return tokens;
    }

    JsonValue tokenizer_config() const {
        JsonValue value = JsonValue::object({{"tokenizer_class", "PreTrainedTokenizerFast"},
                                             {"clean_up_tokenization_spaces", false},
                                             {"model_max_length", config_.model.context}});
        if (tokenizer_->file().name == "tokenizer.model") {
            value.set("tokenizer_class", "LlamaTokenizer");  // reads SentencePiece's models
            value.set("add_bos_token", !encoding()->vocabulary().before.empty());
            value.set("add_eos_token", !encoding()->vocabulary().after.empty());
        }
        const TextTokens tokens = text_tokens();
        const auto name = [&](const char* member, std::int32_t id) {
            for (const AddedToken& token : encoding()->vocabulary().added)
                if (token.id == id) value.set(member, token.text);
        };
        if (tokens.begin) name("bos_token", *tokens.begin);
        if (!tokens.end.empty()) name("eos_token", tokens.end.front());
        return value;
    }

    /// Returns where `generate` begins and ends texts. A chat-template text that is no token is a stop
    /// string.
    JsonValue generation_config() const {
        JsonValue value = JsonValue::object();
        const TextTokens tokens = text_tokens();
        if (tokens.begin) value.set("bos_token_id", *tokens.begin);
        if (!tokens.end.empty()) value.set("eos_token_id", tokens.end);
        if (has_template() && !turn_end())
            value.set("stop_strings", ChatFormat(config_.chat_template, *tokenizer_).stop_texts());
        return value;
    }

    /// Whether the model was trained on conversations.
    bool has_template() const { return encoding() && config_.chat_template != ChatTemplate::automatic; }

    /// Returns the token that ends an answer; nullopt if no template is known or its end is no token.
    std::optional<std::int32_t> turn_end() const {
        if (!has_template()) return std::nullopt;
        const std::vector<std::string> stops = ChatFormat(config_.chat_template, *tokenizer_).stop_texts();
        return stops.size() == 1 ? encoding()->added_token(stops.front()) : std::nullopt;
    }

    /// Returns the chat template in Jinja: the imported template, or the run's.
    std::optional<std::string> chat_jinja() const {
        if (const auto file = imported_.files.find("chat_template.jinja"); file != imported_.files.end())
            return file->second;
        if (const auto file = imported_.files.find("tokenizer_config.json"); file != imported_.files.end())
            return template_of_tokenizer_config(file->second, concat(source_, ": ", file->first));
        return has_template() ? std::optional(jinja_of(config_.chat_template)) : std::nullopt;
    }

    void note_tokenizer(const char* target) {
        if (tokenizer_)
            result_.notes.push_back(
                concat("the tokenizer is not exported: ", target, " holds BPE, not ", tokenizer_->name()));
    }

    /// Says for which texts llama.cpp computes other ids from the metadata.
    void note_text_of_gguf(const BytePairVocabulary& vocabulary) {
        const auto note = [&](const char* text) { result_.notes.push_back(text); };
        if (vocabulary.normalizer == std::vector<NormalizerStep>{UnicodeForm::nfc})
            note(
                "llama.cpp does not apply the tokenizer's normalizer NFC, so text in another Unicode form "
                "has "
                "other ids");
        if (vocabulary.metaspace && vocabulary.metaspace->prepend != Metaspace::Prepend::never)
            note(
                "llama.cpp puts a blank before each text and after each added token; the tokenizer puts none "
                "before a text that begins with one");
        const bool adds_blank_once =
            std::ranges::any_of(vocabulary.normalizer, [](const NormalizerStep& step) {
                const auto* const rules = std::get_if<SentencePieceStep>(&step);
                return rules && rules->adds_blank;
            });
        if (adds_blank_once &&
            std::ranges::any_of(vocabulary.added, [](const AddedToken& token) { return !token.special; }))
            note(
                "llama.cpp puts a blank after each added token, so text beside user-defined symbols has "
                "other "
                "ids");
        if (std::ranges::any_of(vocabulary.added, [](const AddedToken& token) {
                return token.lstrip || token.rstrip || token.single_word;
            }))
            note(
                "GGUF has no keys for lstrip, rstrip and single_word, so text beside such tokens may have "
                "other ids");
    }

    Tensor weights_of(const std::string& parameter) const {
        const auto master = checkpoint_.master.find(parameter);
        // A bf16 run's values are its masters rounded to bf16.
        const bool exact = dtype_ != DType::bf16 && master != checkpoint_.master.end();
        return exact ? master->second : checkpoint_.params.at(parameter);
    }

    /// Rounds a tensor to `dtype`. Throws Error if a value exceeds the dtype's range.
    Tensor converted(const std::string& name, const Tensor& x, DType dtype) const {
        if (x.dtype() == dtype) return x;
        const Tensor y = cast(ctx_, x, dtype);
        check(all_finite(dtype, y.raw_data(), static_cast<std::size_t>(y.elements())), source_, ": tensor '",
              name, "' has values that ", dtype, " cannot hold; expected --dtype f32",
              dtype == DType::f16 ? " or bf16" : "");
        return y;
    }

    enum class Target { safetensors, gguf };

    /// llama.cpp expects norms, biases and positions in float32, and norms that multiply by the weight
    /// itself.
    Tensor gguf_vector(const WeightMapping& mapping, const Tensor& weights) const {
        Tensor x = cast(ctx_, weights, DType::f32);
        const bool adds_one =
            config_.model.norm_offset && mapping.parameter.ends_with(".weight") && mapping.shape.rank() == 1;
        if (adds_one)
            for (std::int64_t i = 0; i < x.elements(); ++i) x.data<float>()[i] += 1.0f;
        return x;
    }

    std::vector<NamedTensor> tensors_in(const TensorNames& names, Target target) const {
        std::vector<NamedTensor> tensors;
        for (const WeightMapping& mapping : weight_mappings(names, config_.model)) {
            Tensor weights = weights_of(mapping.parameter);
            check(weights.shape() == mapping.shape, source_, ": parameter '", mapping.parameter, "' is ",
                  weights.shape(), "; expected ", mapping.shape);
            const bool is_vector = mapping.shape.rank() == 1 || mapping.parameter == "wpe.weight";
            const bool is_wide = target == Target::gguf && is_vector;
            if (is_wide) weights = gguf_vector(mapping, weights);
            std::int64_t row = 0;
            for (const WeightPart& part : mapping.parts) {
                const std::int64_t rows = part.rows();
                const Tensor x = rows_for_file(ctx_, part, weights.slice(0, row, rows));
                row += rows;
                tensors.emplace_back(part.name, converted(part.name, x, is_wide ? DType::f32 : dtype_));
            }
        }
        return tensors;
    }

    Context ctx_{Device::cpu(), 1};
    const Checkpoint& checkpoint_;
    std::string source_;
    ExportOptions options_;
    TrainConfig config_;
    const ModelFamily* family_ = nullptr;
    DType dtype_ = DType::f32;
    std::optional<Tokenizer> tokenizer_;
    ImportedText imported_;
    ExportResult result_;
};

}  // namespace

ExportResult export_model(const Checkpoint& checkpoint, const std::string& source,
                          const ExportOptions& options) {
    const Checkpoint merged = merged_adapters(checkpoint, source);
    Exporter exporter(merged, source, options);
    switch (options.format) {
        case ExportFormat::safetensors:
            return exporter.write_safetensors_folder();
        case ExportFormat::gguf:
            return exporter.write_gguf_file();
    }
    throw Error("export: unknown format");
}

}  // namespace gradtile
