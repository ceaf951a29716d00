#pragma once
/// Tokenizers convert text to token ids, and token ids to text.
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <gradtile/core/enum_names.h>
#include <gradtile/core/text/json_value.h>

namespace gradtile {

class BytePairEncoding;
struct BytePairVocabulary;

/// bpe: all tokenizers that are read from a file, those of type Unigram, too.
enum class TokenizerKind { characters, bytes, bpe };

template <>
struct EnumNames<TokenizerKind> {
    static constexpr std::array names = {std::pair{TokenizerKind::characters, std::string_view("characters")},
                                         std::pair{TokenizerKind::bytes, std::string_view("bytes")},
                                         std::pair{TokenizerKind::bpe, std::string_view("bpe")}};
};

/// Whether ids begin a text or continue one. A tokenizer that encodes a blank before each text decodes this
/// blank to nothing where the text begins.
enum class TextPlace { start, middle };

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
    /// Added to the byte offset in an error of a character tokenizer, for a text without its file's
    /// beginning.
    std::size_t file_offset = 0;
};

/// The file that a tokenizer was read from, under its usual name: tokenizer.json or tokenizer.model.
struct TokenizerSource {
    std::string name = {};
    std::string content = {};
};

/// An immutable value. Equal tokenizers give the same ids for every text. BPE tokenizers are compared by
/// their vocabularies (BytePairVocabulary), so two unequal BPE tokenizers may also give the same ids.
///
/// bytes: the token id is the byte, vocabulary 256; accepts any text, UTF-8 or not.
/// characters: a text's distinct code points in increasing order, as nanoGPT numbers them; accepts UTF-8.
/// bpe: tokens of several characters, see BytePairEncoding. load_tokenizer() reads one from a file.
///
/// Unless a tokenizer's file has a normalizer, nothing is normalised: a carriage return or a byte order mark
/// is a token like any other, and decode(encode(text)) == text. (load_dataset() first drops a byte order mark
/// at a file's start; see dataset.h.)
class Tokenizer {
  public:
    static Tokenizer bytes();
    /// Returns a tokenizer whose alphabet is the text's characters. Throws Error that names `source` if the
    /// text is empty, or if it is not UTF-8, with the byte offset. The text begins at `file_offset`.
    static Tokenizer characters_of(std::string_view text, std::string_view source,
                                   std::size_t file_offset = 0);

    /// Throws Error that begins with `source`; see BytePairEncoding. `file` is the file that the vocabulary
    /// was read from; null if it was read from a file of another kind, or has changed since.
    static Tokenizer byte_pairs(BytePairVocabulary vocabulary, std::string_view source,
                                std::shared_ptr<const TokenizerSource> file = nullptr);

    TokenizerKind kind() const;
    /// Returns the vocabulary size. Every id is less than this number. A BPE vocabulary may have ids without
    /// a text; see has_text.
    std::int64_t vocab_size() const;
    bool has_text(std::int32_t id) const;
    /// Returns null if the tokenizer is not a BPE tokenizer.
    const BytePairEncoding* byte_pair_encoding() const;
    /// Returns a file from which load_tokenizer() reads the same BPE tokenizer: the file that it was read
    /// from, else a tokenizer.json from which the tokenizers library computes the same ids.
    TokenizerSource file() const;
    /// "bytes", "characters (65)", "bpe (50257)" or "unigram (32000)".
    std::string name() const;

    /// Returns a text's ids. An empty text has no ids. Throws Error naming `source` and the byte offset of
    /// invalid UTF-8 or of a character outside the vocabulary.
    std::vector<std::int32_t> encode(std::string_view text, std::string_view source,
                                     const EncodeOptions& options = {}) const;
    /// Returns the ids' text. Throws Error for an id without a text. Bytes that are not valid UTF-8 are
    /// returned unchanged. StreamingDecoder returns whole characters.
    std::string decode(std::span<const std::int32_t> ids, TextPlace place = TextPlace::start) const;

    /// Returns the JSON text for a checkpoint:
    /// - {"kind": "bytes"};
    /// - {"kind": "characters", "characters": "..."};
    /// - {"kind": "bpe", "merges_by_id": false, "file": "..."} with the tokenizer.json text;
    /// - {"kind": "bpe", "model": "...", "before": [], "after": []} with the tokenizer.model in base64, and
    /// the
    ///   ids before and after a text.
    std::string to_json() const;
    /// Throws Error naming `source` when the text is not one that to_json() returns. Older versions wrote
    /// tokenizer.json's object as "tokenizer".
    static Tokenizer from_json(std::string_view text, std::string_view source);

    bool operator==(const Tokenizer&) const = default;

  private:
    struct Bytes {
        bool operator==(const Bytes&) const = default;
    };
    struct Characters {
        std::vector<char32_t> alphabet;  ///< characters in increasing order; a character's id is its index
        /// Each code point's id, up to the largest code point in the alphabet; -1: the code point has no id.
        std::vector<std::int32_t> id_of;
        bool operator==(const Characters&) const = default;
    };
    struct BytePairs {
        std::shared_ptr<const BytePairEncoding> encoding;
        std::shared_ptr<const TokenizerSource> file;  ///< see byte_pairs()
        bool operator==(const BytePairs& other) const;
    };
    using Rules = std::variant<Bytes, Characters, BytePairs>;

    explicit Tokenizer(Rules rules) : rules_(std::move(rules)) {}
    static Tokenizer characters(std::vector<char32_t> alphabet);
    static Tokenizer characters_from_json(const JsonValue& value, const std::string& source);
    static Tokenizer model_from_json(JsonValue& value, const std::string& source);

    Rules rules_;
};

/// Throws Error "SOURCE: ..." unless every tokenizer id is below its model's vocabulary. Ids index the
/// embedding, the logits and vocabulary-sized tables, and a tokenizer may come from any file, so all code
/// that pairs a tokenizer with a model calls this function.
void check_tokenizer(const Tokenizer& tokenizer, std::int64_t vocabulary, std::string_view source);

}  // namespace gradtile
