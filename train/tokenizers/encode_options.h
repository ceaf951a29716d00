#pragma once
/// Options of Tokenizer::encode.

namespace gradtile {

/// What a special token's text, "<|endoftext|>" for example, is encoded as. Other people's text should not be
/// able to write control tokens, so plain text is the default.
enum class SpecialTokens { as_text, recognised };

struct EncodeOptions {
    SpecialTokens special_tokens = SpecialTokens::as_text;
    int threads = 0;  ///< for long texts; 0: one per core. The ids do not depend on it.
};

}  // namespace gradtile
