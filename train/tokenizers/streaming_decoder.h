#pragma once
/// Decodes tokens one by one for a terminal or a file that is read while it grows.
#include <cstdint>
#include <string>

#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

/// A token may contain only a part of a character. The texts that next() returns never end within a
/// character. All these texts and finish()'s text together equal Tokenizer::decode() for all ids.
class StreamingDecoder {
  public:
    /// `place` is the first token's.
    explicit StreamingDecoder(const Tokenizer& tokenizer, TextPlace place = TextPlace::start)
        : tokenizer_(tokenizer), place_(place) {}

    /// Returns the text that is complete with this token. The text is empty while a character is incomplete.
    /// Bytes that cannot become a character are returned unchanged. Throws Error for an id outside the
    /// vocabulary.
    std::string next(std::int32_t id);
    /// Returns the bytes of a character that is still incomplete, at most three.
    std::string finish();

  private:
    Tokenizer tokenizer_;
    TextPlace place_;
    std::string incomplete_;
};

}  // namespace gradtile
