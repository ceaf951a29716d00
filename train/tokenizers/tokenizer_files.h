#pragma once
/// Reads tokenizers from other projects' files, and writes tokenizer.json.
#include <optional>
#include <string>

#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

/// Reads a tokenizer from
/// - tokenizer.json (see tokenizer_json.h);
/// - a directory with tokenizer.json, or vocab.json and merges.txt, as transformers reads it, with its
///   tokenizer_config.json and other files (see tokenizer_folder.h);
/// - encoder.json or vocab.json, with vocab.bpe or merges.txt beside it (either file may be named);
/// - a tiktoken rank file, lines "base64 rank". The file's name selects the pattern and the special
///   tokens: cl100k_base.tiktoken, o200k_base.tiktoken, r50k_base.tiktoken, p50k_base.tiktoken. Another name
///   that contains "cl100k", "o200k", "llama3" or "gpt2" has the same pattern and no special tokens;
/// - Llama 3's tokenizer.model, a rank file with 128,000 tokens, which 256 special tokens follow. Their
///   texts are those in Llama 3.0; Llama 3.1 gave three reserved tokens a meaning;
/// - a model file of SentencePiece, whose name contains ".model".
/// Throws Error naming the file.
Tokenizer load_tokenizer(const std::string& path);
/// Returns the files that load_tokenizer(path) may read. They need not exist.
std::vector<std::string> tokenizer_inputs(const std::string& path);

/// Returns the tokenizer kind that a setting selects. The setting is "characters", "bytes", or a BPE
/// tokenizer file's path.
TokenizerKind tokenizer_kind_of(const std::string& setting);
/// Loads the BPE tokenizer whose path the setting contains. Returns nullopt for "bytes" and for "characters"
/// (the training text determines its alphabet). Throws Error if the setting is neither a kind nor a file.
std::optional<Tokenizer> tokenizer_of_setting(const std::string& setting);

/// Writes a BPE tokenizer as tokenizer.json. Throws Error that names the file if it cannot be written, and
/// Error for other tokenizer kinds.
void save_tokenizer(const std::string& path, const Tokenizer& tokenizer);

/// Returns the vocabulary in a rank file's text; see load_tokenizer.
BytePairVocabulary vocabulary_of_ranks(std::string_view text, std::string_view source);

}  // namespace gradtile
