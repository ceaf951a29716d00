#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>

#include <gradtile/core/check.h>

namespace gradtile {

void check_missing_ids(std::int64_t largest, std::size_t tokens) {
    const std::int64_t missing = largest + 1 - static_cast<std::int64_t>(tokens);
    check(missing <= max_missing_ids, "the largest id is ", largest, ", but there are only ", tokens,
          " tokens; expected at most ", max_missing_ids, " ids without a token");
}

std::string_view gpt2_pattern() {
    return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
}

std::string_view cl100k_pattern() {
    // tiktoken's pattern since version 0.4: whitespace at a text's end is one piece.
    return R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+)"
           R"(|\s++\z|\s*[\r\n]|\s+(?!\S)|\s)";
}

std::string_view llama3_pattern() {
    return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
           R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

std::string_view qwen2_pattern() {
    // Llama 3's with one digit in a piece.
    return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
           R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

std::string_view o200k_pattern() {
    // A word is capital letters and then small ones; letters without case, and marks, count as both kinds.
    return R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
           R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
           R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
           R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
           R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

}  // namespace gradtile
