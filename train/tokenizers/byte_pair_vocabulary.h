#pragma once
/// The parts of a subword tokenizer, the same for every file format: normalizer, pre-tokenizer, model and the
/// tokens around a text.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace gradtile {

/// The rule that token `result` replaces token `left` followed by token `right`. The bytes of `result` are
/// `left`'s bytes followed by `right`'s bytes.
struct BytePairMerge {
    std::int32_t left = 0, right = 0, result = 0;
    bool operator==(const BytePairMerge&) const = default;
};

/// A token that is found in the text before the text is cut into pieces, "<|endoftext|>" for example.
struct AddedToken {
    std::int32_t id = 0;
    std::string text;
    bool special = true;  ///< the token controls the model; see SpecialTokens
    /// The token is searched for only in the text between tokens with normalized == false.
    bool normalized = false;
    /// The token includes the whitespace on its left or right side.
    bool lstrip = false, rstrip = false;
    bool single_word = false;  ///< the token is not found within a word
    bool operator==(const AddedToken&) const = default;
};

/// The character U+2581, which SentencePiece's vocabularies have in place of a blank.
inline constexpr std::string_view blank_symbol = "\u2581";

/// Unicode normalization (Unicode Standard Annex #15).
enum class UnicodeForm { nfc, nfd, nfkc, nfkd };
/// Replaces each character by its lowercase mapping; the context of a character does not matter.
struct LowercaseStep {
    bool operator==(const LowercaseStep&) const = default;
};
/// Puts `text` before a text that is not empty.
struct PrependStep {
    std::string text;
    bool operator==(const PrependStep&) const = default;
};
/// Replaces `from` wherever it occurs, from left to right.
struct ReplaceStep {
    std::string from, to;
    bool operator==(const ReplaceStep&) const = default;
};
/// SentencePiece's normalizer: the rules in a model file's NormalizerSpec.
struct SentencePieceStep {
    std::string character_map{};  ///< see CharacterMap; empty: characters remain as they are
    bool adds_blank = true;       ///< add_dummy_prefix
    bool blank_at_end = false;    ///< treat_whitespace_as_suffix: the blank is added after the text
    bool removes_extra_blanks = true;
    bool escapes_blanks = true;               ///< writes blank_symbol for a blank
    std::vector<std::string> kept_symbols{};  ///< texts that the character map does not change
    bool operator==(const SentencePieceStep&) const = default;
};
using NormalizerStep = std::variant<UnicodeForm, LowercaseStep, PrependStep, ReplaceStep, SentencePieceStep>;

/// The pre-tokenizer Metaspace: writes blank_symbol for each blank, and may put one before the text.
struct Metaspace {
    enum class Prepend { always, first, never };  ///< first: only at the beginning of the whole text
    Prepend prepend = Prepend::always;
    bool splits = true;  ///< a piece ends before each blank_symbol
    bool operator==(const Metaspace&) const = default;
};

/// What the model computes a piece's tokens from.
enum class SubwordModel {
    byte_pairs,       ///< merges of bytes (byte-level BPE)
    character_pairs,  ///< merges of characters (SentencePiece's BPE)
    unigram           ///< the most probable sequence of tokens (Kudo 2018, section 3.2)
};

/// A regular expression that cuts text into pieces: each match is a piece, and so is the text between two
/// matches.
struct SplitPattern {
    std::string regex;
    /// The tokenizers library drops text that no match covers. Here such a text is an error, because the ids
    /// would not decode to it.
    bool must_cover = false;
    bool operator==(const SplitPattern&) const = default;
};

struct BytePairVocabulary {
    SubwordModel model = SubwordModel::byte_pairs;
    /// Each id's bytes, for SentencePiece's models as the model file spells them; empty if the id belongs to
    /// an added token, whose text is in `added`, or to no token.
    std::vector<std::string> tokens{};
    /// The merges in priority order. The list is empty if merges_by_id is true.
    std::vector<BytePairMerge> merges{};
    /// tiktoken's rule: two adjacent tokens are merged if their concatenated bytes are a token. The merge
    /// with the smallest resulting id comes first; with `scores`, the one with the highest score.
    bool merges_by_id = false;
    /// If a whole piece is a token, the piece becomes this token without merges (`ignore_merges` in
    /// tokenizer.json).
    bool whole_pieces = false;

    // Of character_pairs and unigram only.
    std::vector<double> scores{};  ///< by id; of unigram the logarithms of probabilities
    bool sums_in_float32 = false;  ///< SentencePiece adds scores in float32, tokenizers in float64
    std::vector<bool> is_piece{};  ///< by id: text may become this token; empty: any token
    std::int32_t unknown = -1;     ///< the id for characters without a token; -1: they are refused
    bool fuses_unknown = false;    ///< adjacent unknown characters become one id
    bool byte_fallback = false;    ///< characters without a token become the tokens <0x00> to <0xFF>
    /// Decoding writes a blank for blank_symbol, and removes the blank that begins a text.
    bool decodes_blanks = false, removes_first_blank = false;

    std::vector<AddedToken> added{};
    std::vector<NormalizerStep> normalizer{};
    std::optional<Metaspace> metaspace{};
    /// The second pattern cuts the pieces from the first pattern, and so on.
    std::vector<SplitPattern> patterns{};
    /// The ids that EncodeOptions::add_special_tokens puts before and after a text, for example the token
    /// that begins a text.
    std::vector<std::int32_t> before{}, after{};

    bool operator==(const BytePairVocabulary&) const = default;
};

/// The patterns that cut text for the GPT-2, cl100k (GPT-4), o200k (GPT-4o), Llama 3 and Qwen2 tokenizers.
std::string_view gpt2_pattern();
std::string_view cl100k_pattern();
std::string_view o200k_pattern();
std::string_view llama3_pattern();
std::string_view qwen2_pattern();

/// The largest vocabulary size. All ids are less than this number.
constexpr std::int64_t max_byte_pair_vocabulary = std::int64_t{1} << 22;
/// How many ids below the largest one may have no token. Tables have an entry for each id, so a small file
/// with few tokens and a large id would otherwise take hundreds of megabytes.
constexpr std::int64_t max_missing_ids = std::int64_t{1} << 16;
/// How many added tokens a file may have. Known tokenizers have up to 10,000.
constexpr std::size_t max_added_tokens = 32'768;
/// The longest token that is read or trained. Known vocabularies have no longer tokens, and two computations
/// take longer with longer tokens: finding a token's parts by tiktoken's rule, and searching a text for added
/// tokens.
constexpr std::size_t max_token_bytes = 2048;

/// Throws Error when `tokens` tokens leave more than max_missing_ids ids from 0 to `largest` without a token.
void check_missing_ids(std::int64_t largest, std::size_t tokens);

}  // namespace gradtile
