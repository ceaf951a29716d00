#pragma once
/// Trains byte-level BPE tokenizers.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>

namespace gradtile {

struct BytePairTrainerOptions {
    std::int64_t vocabulary = 0;  ///< token count: special tokens, 256 bytes and merges
    std::vector<std::string> special_tokens{"<|endoftext|>"};  ///< the special tokens get the first ids
    /// a pair that occurs less often than this is not merged
    std::int64_t min_frequency = 0;
    int threads = 0;  ///< 0: one thread per core; the result does not depend on the number
    /// A function that is called from time to time with the number of merges so far and in all.
    std::function<void(std::int64_t merges, std::int64_t of)> on_progress{};
};

struct TrainedBytePairs {
    BytePairVocabulary vocabulary;
    /// Why the vocabulary has fewer tokens than BytePairTrainerOptions::vocabulary, such as "the text has no
    /// more pairs". Empty: it has as many.
    std::string shortage;
};

/// Counts the pieces of texts, cut by GPT-2's pattern, and merges the most frequent pair of adjacent tokens
/// until the vocabulary is full. Among equally frequent pairs, the pair with the smaller ids is merged
/// (Sennrich et al. 2016, algorithm 1).
///
/// The result equals the result of the tokenizers library's BpeTrainer with ByteLevel(add_prefix_space=False)
/// and the initial alphabet ByteLevel.alphabet(), when each text is one item of train_from_iterator. There
/// are three differences. The library's train(files) first cuts texts into lines, so no token contains a line
/// break with more whitespace after it. The library counts pairs in 32 bits, and this class counts in 64
/// bits. This class does not merge pairs into tokens of more than 2048 bytes, which no tokenizer here
/// accepts: a text with one line of 5000 dashes would otherwise give such a token.
class BytePairTrainer {
  public:
    /// Throws Error for a vocabulary that cannot hold the special tokens and the bytes, for a special token
    /// of one byte or of more than 2048 bytes, and for a negative min_frequency.
    explicit BytePairTrainer(BytePairTrainerOptions options);
    ~BytePairTrainer();

    /// Counts the pieces in a text, which need not be valid UTF-8. Special tokens' texts are plain text here.
    void add(std::string_view text);
    /// Returns how many different pieces there are.
    std::int64_t distinct_pieces() const;

    /// Trains and returns the vocabulary. It has fewer tokens than options.vocabulary if no other pair can be
    /// merged.
    TrainedBytePairs train() const;

  private:
    class PieceCounts;
    class Merger;

    BytePairTrainerOptions options_;
    std::unique_ptr<PieceCounts> counts_;
};

}  // namespace gradtile
