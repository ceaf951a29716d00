#pragma once
/// Byte-level byte-pair encoding: GPT-2's, cl100k's and Llama 3's tokenizers (Sennrich et al. 2016; Radford
/// et al. 2019, section 2.2).
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>
#include <gradtile/train/tokenizers/encode_options.h>

namespace gradtile {

/// Text to token ids by a vocabulary. Immutable; several threads may encode at once.
///
/// The text is cut at added tokens, then by the patterns, and in each piece the pair of adjacent tokens with
/// the first merge is replaced, leftmost first, until no pair has a merge. Bytes that are not UTF-8 are
/// pieces of their own, so every text is accepted and decodes to the same bytes.
class BytePairEncoding {
  public:
    /// Throws Error that begins with `source` when an id is out of range or has two texts, when a merge's
    /// result is not the bytes of its parts, and when a pattern is wrong.
    BytePairEncoding(BytePairVocabulary vocabulary, std::string_view source);
    ~BytePairEncoding();

    const BytePairVocabulary& vocabulary() const { return vocabulary_; }
    /// One more than the largest id.
    std::int64_t vocab_size() const { return static_cast<std::int64_t>(texts_.size()); }
    /// The bytes of a token; nullopt when the id has none.
    std::optional<std::string_view> text_of(std::int32_t id) const;
    /// The id of an added token.
    std::optional<std::int32_t> added_token(std::string_view text) const;

    /// Throws Error naming `source` and the offset of a byte that no token stands for.
    std::vector<std::int32_t> encode(std::string_view text, std::string_view source,
                                     const EncodeOptions& options) const;

  private:
    struct Tables;
    class Worker;
    class ParallelEncoding;

    std::vector<std::int32_t> encode_in_parallel(std::string_view text, std::string_view source,
                                                 const EncodeOptions& options) const;
    void add_texts(std::string_view source);
    void add_merges(std::string_view source);

    BytePairVocabulary vocabulary_;
    std::vector<std::string_view> texts_;  // by id
    std::unique_ptr<Tables> tables_;
};

}  // namespace gradtile
