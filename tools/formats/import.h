#pragma once
/// Imports other projects' models.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/core/enum_names.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/data/chat_template.h>
#include <gradtile/train/model/language_model.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

struct ImportedModel {
    std::string description = {};  ///< "Hugging Face llama, bfloat16"
    ModelConfig config = {};
    TrainDType dtype = TrainDType::f32;
    /// The parameters in `dtype`; narrower weights, for example float16, are widened exactly, wider ones
    /// rounded.
    NamedTensors parameters = {};
    std::optional<Tokenizer> tokenizer = {};
    /// The template that the files' chat template stands for; `automatic` if they have none or another.
    ChatTemplate chat_template = ChatTemplate::automatic;
    ImportedText text = {};
    std::vector<std::string> notes = {};  ///< lines for the user
};

/// The weights' dtype in the run. stored: bf16 if every weight is stored in bfloat16, else f32.
enum class ImportDType { stored, f32, bf16 };

struct ImportOptions {
    /// The path to a tokenizer file (see load_tokenizer), or "none". If empty: the tokenizer in the weights'
    /// folder, if there is one, with the files beside it (see tokenizer_folder.h).
    std::string tokenizer = {};
    ImportDType dtype = ImportDType::stored;
    /// The model's context, at most the files'; 0: the files'. Models with learned positions have one
    /// context.
    std::int64_t context = 0;
    /// Called with the bytes of weights that are read and that will be.
    std::function<void(std::int64_t bytes, std::int64_t of)> on_progress = {};
    /// Whether file members with no known meaning are ignored, with a note, instead of refused.
    bool allow_unknown = false;
};

/// Reads a model from
/// - a Hugging Face transformers folder, or a .safetensors file or its index in such a folder: config.json of
///   a type in model_families(), model.safetensors or model.safetensors.index.json, generation_config.json
///   and the tokenizer's files;
/// - an llm.c .bin file: GPT-2, version 3 (float32) or 5 (bfloat16).
/// The weights are read in blocks, so that a large model needs little memory beside its own. Mask and
/// rotary-frequency buffers are skipped. Throws Error that names the file, and the tensor if it is
/// missing, unknown or has another shape, or the file member if it would change the logits or the ids in a
/// way that this program does not have.
ImportedModel import_model(const std::string& path, const ImportOptions& options = {});

template <>
struct EnumNames<ImportDType> {
    static constexpr std::array names = {std::pair{ImportDType::stored, std::string_view("stored")},
                                         std::pair{ImportDType::f32, std::string_view("f32")},
                                         std::pair{ImportDType::bf16, std::string_view("bf16")}};
};

}  // namespace gradtile
