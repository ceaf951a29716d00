#include <gradtile/train/formats/export.h>

#include <algorithm>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>
#include <gradtile/train/formats/gguf_metadata.h>
#include <gradtile/train/formats/gguf_writer.h>
#include <gradtile/train/formats/huggingface_config.h>
#include <gradtile/train/formats/internal/tensor_writer.h>
#include <gradtile/train/formats/safetensors.h>
#include <gradtile/train/language_model.h>
#include <gradtile/train/merged_adapters.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>
#include <gradtile/train/train_config.h>

namespace gradtile {
namespace {

namespace fs = std::filesystem;

DType dtype_of_export(ExportDType dtype, TrainDType of_run) {
    switch (dtype) {
        case ExportDType::run:
            return storage_dtype(of_run);
        case ExportDType::f32:
            return DType::f32;
        case ExportDType::bf16:
            return DType::bf16;
        case ExportDType::f16:
            return DType::f16;
    }
    throw Error("export: unknown dtype");
}

/// Exports one model. The weights are converted to the dtype of the export.
class Exporter {
  public:
    Exporter(const Checkpoint& checkpoint, std::string source, const ExportOptions& options)
        : checkpoint_(checkpoint), source_(std::move(source)), options_(options) {
        apply_json(config_, checkpoint.config, source_);
        validate(config_.model);
        dtype_ = dtype_of_export(options.dtype, config_.dtype);
        tokenizer_ = tokenizer_of(checkpoint, source_);
    }

    ExportResult write_safetensors_folder() {
        const JsonValue config = huggingface_config_of(config_.model, dtype_, tokenizer(), source_);
        const fs::path folder = options_.out;
        const std::string weights = (folder / "model.safetensors").string(),
                          config_file = (folder / "config.json").string(),
                          tokenizer_file = (folder / "tokenizer.json").string();
        for (const std::string& file : {weights, config_file, tokenizer_file})
            check(!exists(fs::symlink_status(file)), file, ": exists; choose another --out");
        const std::vector<NamedTensor> tensors =
            tensors_in(huggingface_layout_of(config_.model), /*vectors_in_f32=*/false);
        with_file_name("folder", folder,
                       [&] { make_directories(FileSystem::posix(), fs::absolute(folder)); });
        try {
            // The library transformers reads only files whose metadata has "format": "pt".
            write_safetensors(weights, tensors, {{"format", "pt"}});
            if (tokenizer_ && tokenizer_->kind() == TokenizerKind::bpe) {
                save_tokenizer(tokenizer_file, *tokenizer_);
                result_.files.push_back(tokenizer_file);
            } else {
                note_tokenizer("tokenizer.json");
            }
            const std::string config_text = config.dump(2) + '\n';
            TensorWriter writer(config_file);
            writer.write(std::as_bytes(std::span(config_text)));
            writer.commit();
        } catch (...) {
            // The files did not exist before. A part of a model would keep the next export from this folder.
            std::error_code ignored;
            for (const std::string& file : {weights, config_file, tokenizer_file}) fs::remove(file, ignored);
            throw;
        }
        result_.files.insert(result_.files.begin(), {weights, config_file});
        return std::move(result_);
    }

    ExportResult write_gguf_file() {
        // Throws Error with the name of a setting that neither format can express.
        huggingface_config_of(config_.model, dtype_, tokenizer(), source_);
        GgufFile file{.metadata = gguf_model_metadata(config_.model, dtype_, source_)};
        const GgufMetadata of_tokenizer =
            gguf_tokenizer_metadata(tokenizer(), config_.model.vocabulary, source_);
        file.metadata.insert(file.metadata.end(), of_tokenizer.begin(), of_tokenizer.end());
        check(!exists(fs::symlink_status(options_.out)), options_.out, ": exists; choose another --out");
        const bool llama = rotates_heads(config_.model.positions);
        // llama.cpp expects norms, biases and positions in float32.
        file.tensors =
            tensors_in(llama ? WeightLayout::gguf_llama : WeightLayout::gguf_gpt2, /*vectors_in_f32=*/true);
        if (!tokenizer_ || tokenizer_->kind() != TokenizerKind::bpe) note_tokenizer("GGUF");
        write_gguf(options_.out, file);
        result_.files.push_back(options_.out);
        return std::move(result_);
    }

  private:
    const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }

    void note_tokenizer(const char* target) {
        if (tokenizer_)
            result_.notes.push_back(
                concat("the tokenizer is not exported: ", target, " holds BPE, not ", tokenizer_->name()));
    }

    Tensor weights_of(const std::string& parameter) const {
        const auto master = checkpoint_.master.find(parameter);
        // The values of a bf16 run are the masters rounded to bf16.
        const bool exact = dtype_ != DType::bf16 && master != checkpoint_.master.end();
        return exact ? master->second : checkpoint_.params.at(parameter);
    }

    /// Rounds a tensor to `dtype`. Throws Error if a value is out of the dtype's range.
    Tensor converted(const std::string& name, const Tensor& x, DType dtype) const {
        if (x.dtype() == dtype) return x;
        const Tensor y = cast(ctx_, x, dtype);
        check(all_finite(dtype, y.raw_data(), static_cast<std::size_t>(y.elements())), source_, ": tensor '",
              name, "' has values that ", dtype, " cannot hold; expected --dtype f32",
              dtype == DType::f16 ? " or bf16" : "");
        return y;
    }

    /// Returns the rows of a part, in the order that the target format requires.
    Tensor part_of(const Tensor& whole, const WeightPart& part, std::int64_t row) const {
        const std::int64_t rows = part.transposed ? part.shape[1] : part.shape[0];
        const Tensor x = whole.slice(0, row, rows);
        if (part.transposed) return x.transpose(0, 1);
        if (part.rotated == 0) return x;
        // Row (half, i) of a head becomes row (i, half), so that the two rows of a rotated pair become
        // neighbours.
        const std::int64_t half = rows / part.rotated / 2, width = x.elements() / rows;
        return cast(ctx_, x.reshape({part.rotated, 2, half, width}).transpose(1, 2), x.dtype())
            .reshape(part.shape);
    }

    std::vector<NamedTensor> tensors_in(WeightLayout layout, bool vectors_in_f32) const {
        std::vector<NamedTensor> tensors;
        for (const WeightMapping& mapping : weight_mappings(layout, config_.model)) {
            check(checkpoint_.params.contains(mapping.parameter), source_, ": has no parameter '",
                  mapping.parameter, "'");
            const Tensor weights = weights_of(mapping.parameter);
            check(weights.shape() == mapping.shape, source_, ": parameter '", mapping.parameter, "' is ",
                  weights.shape(), "; expected ", mapping.shape);
            const bool wide =
                vectors_in_f32 && (mapping.shape.rank() == 1 || mapping.parameter == "wpe.weight");
            std::int64_t row = 0;
            for (const WeightPart& part : mapping.parts) {
                const Tensor x = part_of(weights, part, row);
                row += part.transposed ? part.shape[1] : part.shape[0];
                tensors.emplace_back(part.name, converted(part.name, x, wide ? DType::f32 : dtype_));
            }
        }
        return tensors;
    }

    Context ctx_{Device::cpu(), 1};
    const Checkpoint& checkpoint_;
    std::string source_;
    ExportOptions options_;
    TrainConfig config_;
    DType dtype_ = DType::f32;
    std::optional<Tokenizer> tokenizer_;
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
