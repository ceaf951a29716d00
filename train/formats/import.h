#pragma once
/// Imports the models of other projects.
#include <optional>
#include <string>

#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/tokenizers/tokenizer.h>
#include <gradtile/train/train_config.h>

namespace gradtile {

struct ImportedModel {
    std::string description = {};  ///< "Hugging Face llama, bfloat16"
    ModelConfig config = {};
    TrainDType dtype = TrainDType::f32;  ///< bf16 if every weight is stored in bfloat16, else f32
    /// The parameters in `dtype`; narrower weights, for example float16, are widened exactly.
    NamedTensors parameters = {};
    std::optional<Tokenizer> tokenizer = {};
};

struct ImportOptions {
    /// The path of a tokenizer's file (see load_tokenizer), or "none". If empty: tokenizer.json, or
    /// vocab.json with merges.txt, in the folder of the weights, if these files exist.
    std::string tokenizer;
};

/// Reads a model from
/// - a folder of Hugging Face transformers, or a .safetensors file or its index in such a folder: config.json
///   of type gpt2 or llama, model.safetensors or model.safetensors.index.json;
/// - a .bin file of llm.c: GPT-2, version 3 (float32) or 5 (bfloat16).
/// Buffers of masks and rotary frequencies are skipped. Throws Error that names the file, and the tensor if
/// it is missing, unknown or of another shape.
ImportedModel import_model(const std::string& path, const ImportOptions& options = {});

}  // namespace gradtile
