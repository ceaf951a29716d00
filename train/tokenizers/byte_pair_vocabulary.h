#pragma once
/// The parts of a byte-level BPE tokenizer, the same for every file format.
#include <cstdint>
#include <string>
#include <string_view>
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
    bool operator==(const AddedToken&) const = default;
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
    /// Each id's bytes; empty if the id belongs to an added token, whose text is in `added`, or to no token.
    std::vector<std::string> tokens{};
    /// The merges in priority order. The list is empty if merges_by_id is true.
    std::vector<BytePairMerge> merges{};
    /// tiktoken's rule: two adjacent tokens are merged if their concatenated bytes are a token. The merge
    /// with the smallest resulting id comes first.
    bool merges_by_id = false;
    /// If a whole piece is a token, the piece becomes this token without merges (`ignore_merges` in
    /// tokenizer.json).
    bool whole_pieces = false;
    std::vector<AddedToken> added{};
    /// The second pattern cuts the pieces from the first pattern, and so on.
    std::vector<SplitPattern> patterns{};
    /// The ids that EncodeOptions::add_special_tokens puts before and after a text, for example the token
    /// that begins a text.
    std::vector<std::int32_t> before{}, after{};

    bool operator==(const BytePairVocabulary&) const = default;
};

/// The patterns that cut text for the GPT-2, cl100k (GPT-4), o200k (GPT-4o) and Llama 3 tokenizers.
std::string_view gpt2_pattern();
std::string_view cl100k_pattern();
std::string_view o200k_pattern();
std::string_view llama3_pattern();

/// The largest vocabulary size. All ids are less than this number.
constexpr std::int64_t max_byte_pair_vocabulary = std::int64_t{1} << 22;
/// How many ids below the largest one may have no token. Tables have an entry for each id, so a small file
/// with few tokens and a large id would otherwise take hundreds of megabytes.
constexpr std::int64_t max_missing_ids = std::int64_t{1} << 16;
/// How many added tokens a file may have. Known tokenizers have up to 10,000.
constexpr std::size_t max_added_tokens = 32'768;

/// Throws Error when `tokens` tokens leave more than max_missing_ids ids from 0 to `largest` without a token.
void check_missing_ids(std::int64_t largest, std::size_t tokens);

}  // namespace gradtile
