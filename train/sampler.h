#pragma once
/// Sampling: text from a model, token by token.
#include <span>
#include <string>
#include <vector>

#include <gradtile/core/range.h>
#include <gradtile/train/language_model.h>

namespace gradtile {

struct SampleOptions {
    std::string prompt = {};    ///< empty: the text starts after a line break
    std::int64_t tokens = 200;  ///< number of tokens to draw
    double temperature = 1.0;   ///< divides the logits; 0: always the most likely token
    std::int64_t top_k = 0;     ///< draw among the k most likely tokens; 0: all
    double top_p = 1.0;         ///< draw among the fewest most likely tokens whose probabilities add up to p
    std::uint64_t seed = 1;
};

/// Allowed values of the numbers in SampleOptions.
namespace sample_limits {
inline constexpr Range tokens{0, 1e9}, temperature{0, 1e6}, top_k{0, 2147483647},
    top_p{.min = 0, .max = 1, .min_is_open = true};
}

/// Returns the next token for a model's logits. Applies temperature, then top_k, then top_p, and draws with
/// u, a uniform number in [0, 1). Temperature 0 takes the largest logit, and the smallest id among equal
/// ones. Throws Error when a logit is not finite.
std::int32_t choose_token(std::span<const double> logits, const SampleOptions& options, double u);

/// Returns the drawn tokens. Draw i uses the Philox counter {i, ..} under the seed; the model sees the last
/// `context` tokens. Throws Error for an empty prompt and for ids outside the vocabulary.
std::vector<std::int32_t> sample_tokens(const LanguageModel& model, std::span<const std::int32_t> prompt,
                                        const SampleOptions& options);

/// Returns the prompt followed by the drawn text. Throws Error when the model has no tokenizer, or when the
/// prompt contains a character that the tokenizer does not know.
std::string sample(const LanguageModel& model, const SampleOptions& options);

}  // namespace gradtile
