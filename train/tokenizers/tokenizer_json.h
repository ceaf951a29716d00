#pragma once
/// Reads and writes tokenizer.json, the format of the Hugging Face tokenizers library.
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>

namespace gradtile {

/// Reads a byte-level BPE tokenizer:
/// - model BPE, merges written "a b" or ["a", "b"], ignore_merges;
/// - pre_tokenizer ByteLevel, Split (by a Regex or String, each match a piece), Digits, or a Sequence of
/// them;
/// - added_tokens, special or not;
/// - post_processor TemplateProcessing, RobertaProcessing, ByteLevel, or a Sequence of them.
///
/// The member decoder is not read.
/// Throws Error that begins with `source` and names the member, when the value is not such a tokenizer or has
/// an option that would change the text: a normalizer, add_prefix_space, tokens that remove the space around
/// them, dropout.
BytePairVocabulary vocabulary_of_tokenizer_json(const nlohmann::json& value, std::string_view source);

/// Returns a tokenizer.json from which the tokenizers library computes the same ids. For a vocabulary with
/// merges_by_id, the value contains a list of merges.
nlohmann::json tokenizer_json_of(const BytePairVocabulary& vocabulary);

/// Returns the vocabulary of GPT-2's two files. encoder.json (or vocab.json) is an object of tokens and their
/// ids. vocab.bpe (or merges.txt) has a first line that begins with "#version", and then one merge per line,
/// "a b".
BytePairVocabulary vocabulary_of_encoder_json(const nlohmann::json& encoder, std::string_view merges,
                                              std::string_view source);

}  // namespace gradtile
