#pragma once
/// Decodes tokens one by one for a terminal or a file that is read while it grows.
#include <cstdint>
#include <string>

#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

/// A token may hold a part of a character. The texts that next() returns never end within a character; all
/// of them and finish() together are Tokenizer::decode() of all ids.
class StreamingDecoder {
  public:
    explicit StreamingDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

    /// The text that the token completes; empty while a character is incomplete. Bytes that cannot become a
    /// character are returned unchanged. Throws Error for an id outside the vocabulary.
    std::string next(std::int32_t id);
    /// The bytes of a character that was never completed, at most three.
    std::string finish();

  private:
    Tokenizer tokenizer_;
    std::string incomplete_;
};

}  // namespace gradtile
