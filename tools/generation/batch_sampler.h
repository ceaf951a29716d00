#pragma once
/// Samples several texts at once, so that a pass reads every weight once for all texts.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/tools/generation/sampler.h>
#include <gradtile/train/model/language_model.h>

namespace gradtile {

/// A text to generate. Its draws depend on the number and on the seed only; see SampleOptions::number.
struct TokenRequest {
    std::span<const std::int32_t> prompt;
    std::uint64_t number = 0;
};

/// Receives the texts' tokens and ends. `text` is the request index. Either function may be empty.
struct BatchTokenHandler {
    /// Returns false to end the text with this token.
    std::function<bool(std::size_t text, std::int32_t token)> on_token = {};
    std::function<void(std::size_t text)> on_end = {};
};

/// Draws up to options.tokens tokens for each request, `batch` texts at a time; when a text ends, the next
/// request takes its slot. A text has the same tokens as sample_tokens() for its prompt and number, up to
/// rounding: another token may be drawn only where two tokens' probabilities are equal up to rounding.
/// Ignores options.number, prompt and stop. Throws Error as sample_tokens() does, before the first draw.
void sample_token_batch(const LanguageModel& model, std::span<const TokenRequest> requests,
                        const SampleOptions& options, std::int64_t batch, const BatchTokenHandler& handler);

/// Receives the texts: pieces in whole characters, and each text when it is complete.
struct BatchTextHandler {
    std::function<void(std::size_t text, std::string_view piece)> on_text = {};
    std::function<void(std::size_t text, SampledText sampled)> on_end = {};
};

/// Continues each prompt `samples` times as sample_text() does, up to rounding. Text number i belongs to
/// prompt i / samples and has the number i % samples, so a prompt's texts do not depend on the other prompts.
/// For an empty prompt see prompt_tokens(). Throws Error "prompt 3: ..." (counted from 1), before the first
/// draw, when a prompt contains a character that the tokenizer does not know.
void sample_text_batch(const LanguageModel& model, std::span<const std::string> prompts, std::size_t samples,
                       const SampleOptions& options, std::int64_t batch, const BatchTextHandler& handler);

/// Returns how many texts' caches take at most half the available memory: 1 to 64.
std::int64_t automatic_batch(const LanguageModel& model);

}  // namespace gradtile
