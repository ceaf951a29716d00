#pragma once
/// tokenizer.json of the Hugging Face tokenizers library.
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>

namespace gradtile {

/// Reads a byte-level BPE tokenizer:
/// - model BPE, merges written "a b" or ["a", "b"], ignore_merges;
/// - pre_tokenizer ByteLevel, Split (by a Regex or String, each match a piece), Digits, or a Sequence of
/// them;
/// - added_tokens, special or not.
///
/// post_processor and decoder are not read: encode() adds no tokens of its own. Throws Error that begins with
/// `source` and names the member, when the value is not such a tokenizer or asks for what would change the
/// text: a normalizer, add_prefix_space, tokens that strip their surroundings, dropout.
BytePairVocabulary vocabulary_of_tokenizer_json(const nlohmann::json& value, std::string_view source);

/// Returns a tokenizer.json that the tokenizers library reads and that gives the same ids. A vocabulary with
/// merges_by_id gets a list of merges.
nlohmann::json tokenizer_json_of(const BytePairVocabulary& vocabulary);

/// Returns vocabulary_of_tokenizer_json's parts of two files: encoder.json (or vocab.json), an object of
/// tokens and their ids, and vocab.bpe (or merges.txt), lines "a b" after a first line that begins with
/// "#version".
BytePairVocabulary vocabulary_of_encoder_json(const nlohmann::json& encoder, std::string_view merges,
                                              std::string_view source);

}  // namespace gradtile
