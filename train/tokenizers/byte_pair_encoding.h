#pragma once
/// Subword tokenizers: byte-level byte-pair encoding, as GPT-2, cl100k and Llama 3 use it (Sennrich et al.
/// 2016; Radford et al. 2019, section 2.2), and SentencePiece's models of characters (Kudo and Richardson
/// 2018).
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

/// Encodes text as token ids by a vocabulary. The object is immutable, and several threads may encode at
/// once.
///
/// The text is cut at added tokens. The text between them is normalized, and cut into pieces by the patterns
/// and Metaspace. The model computes each piece's tokens. With BPE, the adjacent token pair whose merge comes
/// first in the list is replaced by the merge's result; if several pairs are equal, the leftmost one. This
/// step is repeated until no pair has a merge. Each run of bytes that are not UTF-8 is one piece.
///
/// Byte-level BPE without a normalizer accepts every text, and its ids decode to the same bytes. Normalizers,
/// unknown characters and tokens that include the space around them change the decoded text.
class BytePairEncoding {
  public:
    /// Throws Error that begins with `source` when an id is out of range or has two texts, when a merge's
    /// result is not its parts' bytes, and when a pattern is wrong.
    BytePairEncoding(BytePairVocabulary vocabulary, std::string_view source);
    ~BytePairEncoding();

    const BytePairVocabulary& vocabulary() const { return vocabulary_; }
    /// One more than the largest id.
    std::int64_t vocab_size() const { return vocab_size_; }
    /// Returns a token's decoded bytes; nullopt if the id has none. See
    /// BytePairVocabulary::removes_first_blank.
    std::optional<std::string_view> text_of(std::int32_t id) const;
    /// Returns an added token's id; nullopt if no added token has this text.
    std::optional<std::int32_t> added_token(std::string_view text) const;

    /// Throws Error that names `source` and the offset of a byte for which the vocabulary has no token.
    std::vector<std::int32_t> encode(std::string_view text, std::string_view source,
                                     const EncodeOptions& options) const;

  private:
    struct Tables;
    class Worker;
    class ParallelEncoding;

    std::vector<std::int32_t> encode_in_parallel(std::string_view text, std::string_view source,
                                                 const EncodeOptions& options) const;
    void add_tokens(std::string_view source);
    void add_added_token(const AddedToken& token, std::string_view source);
    void add_listed_merges(std::string_view source);
    void add_derived_merges();
    void check_model(std::string_view source);
    void decode_tokens();

    BytePairVocabulary vocabulary_;
    std::vector<const AddedToken*> added_by_id_;  // in increasing order
    std::int64_t vocab_size_ = 0;
    std::unique_ptr<Tables> tables_;
};

}  // namespace gradtile
