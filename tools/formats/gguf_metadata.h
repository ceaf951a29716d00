#pragma once
/// GGUF metadata for a model and its tokenizer, as llama.cpp reads them.
#include <optional>
#include <string>

#include <gradtile/tools/formats/families/model_family.h>
#include <gradtile/tools/formats/gguf_writer.h>
#include <gradtile/tools/formats/huggingface_config.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

/// Returns a model's metadata. Throws Error that begins with `source` and names a setting that llama.cpp's
/// architecture for the family does not have. The family must be able to hold the config (see family_of()).
GgufMetadata gguf_model_metadata(const ModelFamily& family, const ModelConfig& config, DType dtype,
                                 const std::string& source);

/// Returns the tensors that llama.cpp expects beside the parameters: divisors of the rotary frequencies,
/// float32.
std::vector<NamedTensor> gguf_rope_tensors(const ModelConfig& config);

/// What GGUF says about text beside the vocabulary.
struct GgufText {
    TextTokens tokens = {};
    std::optional<std::int32_t> turn_end = {};      ///< the token that ends an answer in the chat template
    std::optional<std::string> chat_template = {};  ///< in Jinja
};

/// Returns a subword tokenizer's tokens, with merges and pattern name (byte-level BPE) or with scores (models
/// of SentencePiece), the tokens that begin and end texts, and the chat template. For other tokenizers, and
/// if `tokenizer` is null, the metadata say that the file has no tokenizer. Throws Error that begins with
/// `source` if llama.cpp has no name for the tokenizer's pattern, if it cannot normalize or merge as the
/// tokenizer does, if GGUF has no key for all tokens that end a text or that the tokenizer adds to a text, or
/// if a tokenizer id is not below `vocabulary`.
GgufMetadata gguf_tokenizer_metadata(const Tokenizer* tokenizer, std::int64_t vocabulary,
                                     const GgufText& text, const std::string& source);

}  // namespace gradtile
