#pragma once
/// Reads and writes tokenizer.json, the Hugging Face tokenizers library's format.
#include <functional>
#include <string>
#include <string_view>

#include <gradtile/core/text/json_writer.h>
#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>

namespace gradtile {

/// Reads a tokenizer from a text:
/// - normalizer NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace (of a String), or a Sequence of them;
/// - pre_tokenizer ByteLevel, Split (by a Regex or String, each match a piece), Digits, or a Sequence of
///   them; or Metaspace alone;
/// - model BPE, merges written "a b" or ["a", "b"], ignore_merges, byte_fallback, fuse_unk; or Unigram;
/// - added_tokens, special or not, with lstrip, rstrip and single_word;
/// - post_processor TemplateProcessing, RobertaProcessing, ByteLevel, or a Sequence of them;
/// - decoder Metaspace, ByteFallback, Fuse, Replace and Strip of blanks, or a Sequence of them. The decoder
///   of byte-level BPE is not read.
///
/// Throws Error that begins with `source` and names the member, when the text is not such a tokenizer or has
/// another option that would change the ids, add_prefix_space of ByteLevel or dropout for example. Peak
/// memory, including the text, is at most six times the text if the text has more than 1 MB.
BytePairVocabulary vocabulary_of_tokenizer_json(std::string_view text, std::string_view source);

/// Prints a tokenizer.json from which the tokenizers library computes the same ids. For a vocabulary with
/// merges_by_id, the text contains a merge list. Throws Error unless the vocabulary is of byte-level BPE
/// without a normalizer.
void write_tokenizer_json(JsonWriter& writer, const BytePairVocabulary& vocabulary);

/// Visits the merges for a tokenizer.json, "a b", in the characters that represent bytes (byte_characters.h).
void for_each_merge_text(const BytePairVocabulary& vocabulary,
                         const std::function<void(const std::string& text)>& visit);

/// Returns the vocabulary from GPT-2's two files. encoder.json (or vocab.json) is an object with tokens and
/// their ids. vocab.bpe (or merges.txt) has a first line that begins with "#version", and then one merge per
/// line, "a b".
BytePairVocabulary vocabulary_of_encoder_json(std::string encoder, std::string_view merges,
                                              std::string_view source);

}  // namespace gradtile
