#pragma once
/// Options for Tokenizer::encode.

namespace gradtile {

/// How a special token's text, for example "<|endoftext|>", is encoded: as plain text or as the special
/// token. Plain text is the default, because text from unknown authors should not be able to produce control
/// tokens.
enum class SpecialTokens { as_text, recognised };

struct EncodeOptions {
    SpecialTokens special_tokens = SpecialTokens::as_text;
    /// Adds the ids that the tokenizer puts before and after a text (BytePairVocabulary::before and after),
    /// as the tokenizers library does with its option of this name.
    bool add_special_tokens = false;
    /// Thread count for long texts; 0: one per core. The thread count does not change the ids.
    int threads = 0;
};

}  // namespace gradtile
