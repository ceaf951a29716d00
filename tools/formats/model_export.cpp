#include <gradtile/tools/formats/internal/model_export.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/formats/internal/weight_rounding.h>
#include <gradtile/train/data/chat_jinja.h>
#include <gradtile/train/tokenizers/tokenizer_folder.h>

namespace gradtile {
namespace {

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

}  // namespace

ModelExport::ModelExport(const Checkpoint& checkpoint, std::string source, const ExportOptions& options)
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

const BytePairEncoding* ModelExport::encoding() const {
    return tokenizer_ ? tokenizer_->byte_pair_encoding() : nullptr;
}

TextTokens ModelExport::text_tokens() const {
    TextTokens tokens{.end = end_tokens_of(imported_, tokenizer_, config_.chat_template)};
    if (!encoding()) return tokens;
    if (!encoding()->vocabulary().before.empty()) tokens.begin = encoding()->vocabulary().before.front();
    for (const char* const text : {"<|begin_of_text|>", "<|endoftext|>"})
        if (!tokens.begin) tokens.begin = encoding()->added_token(text);
    return tokens;
}

bool ModelExport::has_template() const {
    return encoding() && config_.chat_template != ChatTemplate::automatic;
}

std::optional<std::int32_t> ModelExport::turn_end() const {
    if (!has_template()) return std::nullopt;
    const std::vector<std::string> stops = ChatFormat(config_.chat_template, *tokenizer_).stop_texts();
    return stops.size() == 1 ? encoding()->added_token(stops.front()) : std::nullopt;
}

std::optional<std::string> ModelExport::chat_jinja() const {
    if (const auto file = imported_.files.find("chat_template.jinja"); file != imported_.files.end())
        return file->second;
    if (const auto file = imported_.files.find("tokenizer_config.json"); file != imported_.files.end())
        return template_of_tokenizer_config(file->second, concat(source_, ": ", file->first));
    return has_template() ? std::optional(jinja_of(config_.chat_template)) : std::nullopt;
}

void ModelExport::note_lost_tokenizer(const char* target) {
    if (tokenizer_)
        note(concat("the tokenizer is not exported: ", target, " holds BPE, not ", tokenizer_->name()));
}

Tensor ModelExport::weights_of(const std::string& parameter) const {
    const auto master = checkpoint_.master.find(parameter);
    // A bf16 run's values are its masters rounded to bf16.
    const bool exact = dtype_ != DType::bf16 && master != checkpoint_.master.end();
    return exact ? master->second : checkpoint_.params.at(parameter);
}

/// Rounds a tensor to `dtype`. Throws Error if a value exceeds the dtype's range.
Tensor ModelExport::converted(const std::string& name, const Tensor& x, DType dtype) const {
    if (x.dtype() == dtype) return x;
    const Tensor y = cast(ctx_, x, dtype);
    check_rounded(x, y, concat(source_, ": tensor '", name, "'"));
    return y;
}

std::vector<NamedTensor> ModelExport::tensors(const TensorNames& names, const ConvertVector& vectors) const {
    std::vector<NamedTensor> tensors;
    for (const WeightMapping& mapping : weight_mappings(names, config_.model)) {
        Tensor weights = weights_of(mapping.parameter);
        check(weights.shape() == mapping.shape, source_, ": parameter '", mapping.parameter, "' is ",
              weights.shape(), "; expected ", mapping.shape);
        const bool is_vector = mapping.shape.rank() == 1 || mapping.parameter == "wpe.weight";
        const bool is_converted = is_vector && vectors;
        if (is_converted) weights = vectors(mapping, weights);
        std::int64_t row = 0;
        for (const WeightPart& part : mapping.parts) {
            const std::int64_t rows = part.rows();
            const Tensor x = rows_for_file(ctx_, part, weights.slice(0, row, rows));
            row += rows;
            tensors.emplace_back(part.name, converted(part.name, x, is_converted ? x.dtype() : dtype_));
        }
    }
    return tensors;
}

}  // namespace gradtile
