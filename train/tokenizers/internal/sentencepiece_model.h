#pragma once
/// Reads SentencePiece's model files (tokenizer.model), which are protocol buffers.
#include <string_view>

#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>

namespace gradtile {

/// Returns the vocabulary of a model of type BPE or Unigram. From it the same ids are computed as by
/// SentencePieceProcessor::Encode; nothing is added before and after a text. Control pieces and the unknown
/// piece become special added tokens.
///
/// Throws Error that begins with `source` and names the field or piece, when the bytes are no such model: a
/// damaged protocol buffer, another model type, pieces of type UNUSED, a denormalizer, or a character of a
/// BPE piece that is no piece itself.
BytePairVocabulary vocabulary_of_sentencepiece(std::string_view model, std::string_view source);

}  // namespace gradtile
