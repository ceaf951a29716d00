#pragma once
/// A model that is exported: what every format needs of it.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/tools/formats/export.h>
#include <gradtile/tools/formats/huggingface_config.h>
#include <gradtile/tools/formats/internal/weight_names.h>
#include <gradtile/tools/formats/safetensors.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/model/language_model.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>

namespace gradtile {

class ModelExport {
  public:
    /// `checkpoint` has no adapters, and must outlive this object. Throws Error as export_model() does.
    ModelExport(const Checkpoint& checkpoint, std::string source, const ExportOptions& options);

    const std::string& source() const { return source_; }
    const std::string& out() const { return options_.out; }
    const TrainConfig& config() const { return config_; }
    const ModelFamily& family() const { return *family_; }
    DType dtype() const { return dtype_; }  ///< the exported weights' dtype
    /// The text files that an import kept.
    const ImportedText& imported() const { return imported_; }
    const std::optional<Tokenizer>& tokenizer() const { return tokenizer_; }
    /// The tokenizer if it is BPE or Unigram, else null.
    const BytePairEncoding* encoding() const;

    TextTokens text_tokens() const;
    /// Whether the model was trained on conversations.
    bool has_template() const;
    /// Returns the token that ends an answer; nullopt if no template is known or its end is no token.
    std::optional<std::int32_t> turn_end() const;
    /// Returns the chat template in Jinja: the imported template, or the run's.
    std::optional<std::string> chat_jinja() const;

    /// Returns the values of a parameter that is a vector or the positions, as a format stores them.
    using ConvertVector = std::function<Tensor(const WeightMapping&, const Tensor&)>;
    /// Returns all weights by their names in the format, in model order, converted to dtype(). `vectors`, if
    /// set, converts the vectors instead. Throws Error that names a tensor with values that its dtype cannot
    /// hold.
    std::vector<NamedTensor> tensors(const TensorNames& names, const ConvertVector& vectors = {}) const;

    /// Adds a line for the user, which says what the target does not contain.
    void note(std::string line) { notes_.push_back(std::move(line)); }
    /// Notes that `target` does not hold the tokenizer, if there is one.
    void note_lost_tokenizer(const char* target);
    const std::vector<std::string>& notes() const { return notes_; }

  private:
    Tensor weights_of(const std::string& parameter) const;
    Tensor converted(const std::string& name, const Tensor& x, DType dtype) const;

    Context ctx_{Device::cpu(), 1};
    const Checkpoint& checkpoint_;
    std::string source_;
    ExportOptions options_;
    TrainConfig config_;
    const ModelFamily* family_ = nullptr;
    DType dtype_ = DType::f32;
    std::optional<Tokenizer> tokenizer_;
    ImportedText imported_;
    std::vector<std::string> notes_;
};

}  // namespace gradtile
