#pragma once
/// Options of Tokenizer::encode.

namespace gradtile {

/// How the text of a special token, for example "<|endoftext|>", is encoded: as plain text or as the special
/// token. Plain text is the default, because text from unknown authors should not be able to produce control
/// tokens.
enum class SpecialTokens { as_text, recognised };

struct EncodeOptions {
    SpecialTokens special_tokens = SpecialTokens::as_text;
    /// Adds the ids that the tokenizer puts before and after a text (BytePairVocabulary::before and after),
    /// as the tokenizers library does with the option of this name.
    bool add_special_tokens = false;
    /// Number of threads for long texts; 0: one per core. The ids do not depend on the number.
    int threads = 0;
};

}  // namespace gradtile
