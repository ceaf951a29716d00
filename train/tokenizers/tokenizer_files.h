#pragma once
/// Tokenizers in files of other projects.
#include <optional>
#include <string>

#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

/// Reads a byte-level BPE tokenizer from
/// - tokenizer.json (see tokenizer_json.h), or a directory that holds one;
/// - encoder.json or vocab.json, with vocab.bpe or merges.txt beside it (either file may be named);
/// - a rank file of tiktoken, lines "base64 rank". Its name tells the split and the special tokens:
///   cl100k_base.tiktoken, r50k_base.tiktoken, p50k_base.tiktoken, gpt2.tiktoken; another name that contains
///   "cl100k" or "gpt2" has that split and no special tokens.
/// Throws Error naming the file.
Tokenizer load_tokenizer(const std::string& path);

/// Returns the kind that a setting names: "characters", "bytes", or the path of a BPE tokenizer's file.
TokenizerKind tokenizer_kind_of(const std::string& setting);
/// Loads the BPE tokenizer of such a setting; nullopt for "characters", which the text makes, and for
/// "bytes". Throws Error when the setting is neither a kind nor a file.
std::optional<Tokenizer> tokenizer_of_setting(const std::string& setting);

/// Writes a BPE tokenizer as tokenizer.json. Throws Error naming the file, and for other kinds of tokenizers.
void save_tokenizer(const std::string& path, const Tokenizer& tokenizer);

/// Reads a rank file's text; see load_tokenizer.
BytePairVocabulary vocabulary_of_ranks(std::string_view text, std::string_view source);

}  // namespace gradtile
