#pragma once
/// Sampling: text from a model, one token after the other.
#include <span>
#include <string>
#include <vector>

#include <gradtile/core/range.h>
#include <gradtile/train/language_model.h>

namespace gradtile {

struct SampleOptions {
    std::string prompt = {};    ///< empty: the text begins after a line break
    std::int64_t tokens = 200;  ///< to draw
    double temperature = 1.0;   ///< logits are divided by it; 0: always the likeliest token
    std::int64_t top_k = 0;     ///< draw among the k likeliest tokens only; 0: all
    double top_p = 1.0;         ///< draw among the fewest likeliest tokens that together have probability p
    std::uint64_t seed = 1;
};

/// Allowed values of the numbers above.
namespace sample_limits {
inline constexpr Range tokens{0, 1e9}, temperature{0, 1e6}, top_k{0, 2147483647},
    top_p{.least = 0, .most = 1, .least_is_open = true};
}

/// The next token from a model's logits: the smallest id among equally likely ones when greedy, else by the
/// uniform number u in [0, 1). temperature, then top_k, then top_p. Throws Error when a logit is not finite.
std::int32_t choose_token(std::span<const double> logits, const SampleOptions& options, double u);

/// The drawn tokens. Draw i takes Philox counter {i, ..} under the seed; the model sees the last `context`
/// tokens. Throws Error for an empty prompt and for ids outside the vocabulary.
std::vector<std::int32_t> sample_tokens(const LanguageModel& model, std::span<const std::int32_t> prompt,
                                        const SampleOptions& options);

/// The prompt and what the model makes of it. Throws Error when the model has no tokenizer or the prompt a
/// character it does not know.
std::string sample(const LanguageModel& model, const SampleOptions& options);

}  // namespace gradtile
