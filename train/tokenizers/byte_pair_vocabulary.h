#pragma once
/// What a byte-level BPE tokenizer consists of, whatever file it comes from.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradtile {

/// Token `result` replaces `left` followed by `right`, whose bytes together are those of `result`.
struct BytePairMerge {
    std::int32_t left = 0, right = 0, result = 0;
    bool operator==(const BytePairMerge&) const = default;
};

/// A token that is found in the text before the text is cut into pieces, "<|endoftext|>" for example.
struct AddedToken {
    std::int32_t id = 0;
    std::string text;
    bool special = true;      ///< controls the model; see SpecialTokens
    bool normalized = false;  ///< found after those that are not normalized
    bool operator==(const AddedToken&) const = default;
};

struct BytePairVocabulary {
    /// The bytes of every id; empty: the id has no bytes here (an added token has its text, others are
    /// holes).
    std::vector<std::string> tokens{};
    /// The first is merged first. Empty if merges_by_id.
    std::vector<BytePairMerge> merges{};
    /// tiktoken's rule: any two tokens merge if their bytes together are a token, the smallest id first.
    bool merges_by_id = false;
    /// A piece that is a token is not merged step by step (`ignore_merges` in tokenizer.json).
    bool whole_pieces = false;
    std::vector<AddedToken> added{};
    /// Regular expressions that cut the text into pieces: each match is a piece, and so is the text between
    /// two matches. The second cuts the pieces of the first, and so on.
    std::vector<std::string> patterns{};

    bool operator==(const BytePairVocabulary&) const = default;
};

/// The patterns by which GPT-2's, cl100k's and Llama 3's texts are cut.
std::string_view gpt2_pattern();
std::string_view cl100k_pattern();
std::string_view llama3_pattern();

/// Ids are below this number.
constexpr std::int64_t max_byte_pair_vocabulary = std::int64_t{1} << 22;

}  // namespace gradtile
