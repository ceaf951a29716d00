#pragma once
/// The metadata of a model and its tokenizer as llama.cpp reads them.
#include <string>

#include <gradtile/train/formats/gguf_writer.h>
#include <gradtile/train/formats/weight_names.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

/// Throws Error that begins with `source` and names the setting that llama.cpp's architectures gpt2 and llama
/// do not have. The config must be one of a Hugging Face model (huggingface_config_of).
GgufMetadata gguf_model_metadata(const ModelConfig& config, DType dtype, const std::string& source);

/// The tokens, merges and split of a byte-level BPE tokenizer; without a tokenizer, or with one of characters
/// or bytes, the statement that the file has none. Throws Error that begins with `source` when llama.cpp has
/// no name for the tokenizer's split.
GgufMetadata gguf_tokenizer_metadata(const Tokenizer* tokenizer, std::int64_t vocabulary,
                                     const std::string& source);

}  // namespace gradtile
