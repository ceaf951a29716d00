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
    std::int64_t vocabulary = 0;  ///< tokens in all: special tokens, 256 bytes, merges
    std::vector<std::string> special_tokens{"<|endoftext|>"};  ///< they get the first ids
    std::int64_t min_frequency = 0;                            ///< pairs that occur less often are not merged
    int threads = 0;  ///< 0: one per core; the result does not depend on it
    /// Called with the merges that are done, of so many, now and then.
    std::function<void(std::int64_t merges, std::int64_t of)> on_progress{};
};

/// Counts the pieces of texts, cut by GPT-2's pattern, and merges the most frequent pair of adjacent tokens
/// until the vocabulary is full; of equally frequent pairs the one with the smaller ids (Sennrich et al.
/// 2016, algorithm 1).
///
/// The result is that of the tokenizers library's BpeTrainer with ByteLevel(add_prefix_space=False) and the
/// initial alphabet ByteLevel.alphabet(), when each text is one item of train_from_iterator. Its
/// train(files) cuts texts into lines first, so no token spans a line break followed by more whitespace
/// there. It counts pairs in 32 bits, this class in 64.
class BytePairTrainer {
  public:
    /// Throws Error for a vocabulary that cannot hold the special tokens and the bytes.
    explicit BytePairTrainer(BytePairTrainerOptions options);
    ~BytePairTrainer();

    /// Counts the pieces of a text, UTF-8 or not. Special tokens in it are plain text.
    void add(std::string_view text);
    /// Pieces that differ.
    std::int64_t distinct_pieces() const;

    /// The vocabulary has less tokens than asked for when the text has no more pairs.
    BytePairVocabulary train() const;

  private:
    class PieceCounts;
    class Merger;

    BytePairTrainerOptions options_;
    std::unique_ptr<PieceCounts> counts_;
};

}  // namespace gradtile
