#pragma once
/// Sampling: text from a model, token by token. Several texts are drawn at once, because a pass reads every
/// weight once for all of them; a single text is a batch of one.
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/range.h>
#include <gradtile/tools/generation/next_token.h>
#include <gradtile/tools/generation/stop_texts.h>
#include <gradtile/train/model/language_model.h>
#include <gradtile/train/tokenizers/streaming_decoder.h>

namespace gradtile {

struct SampleOptions {
    std::string prompt = {};    ///< empty: see prompt_tokens()
    std::int64_t tokens = 200;  ///< how many tokens to draw
    double temperature = 1.0;   ///< divides the logits; 0: always the most likely token
    std::int64_t top_k = 0;     ///< draw among the k most likely tokens; 0: all
    double top_p = 1.0;         ///< draw among the fewest most likely tokens whose probabilities add up to p
    double min_p = 0.0;         ///< draw among tokens at least min_p times as likely as the most likely one
    /// Makes tokens that the text already contains less likely: a positive logit is divided by this number, a
    /// negative one multiplied by it (Keskar et al. 2019, "CTRL", section 4.1). 1: does nothing.
    double repetition_penalty = 1.0;
    std::vector<std::string> stop = {};  ///< the text ends before the first stop text
    /// Continues a text after a token in end_tokens_of(model). Affects only functions that return texts; the
    /// others never end a text.
    bool ignore_eos = false;
    std::uint64_t seed = 1;
    std::uint64_t number = 0;  ///< texts with different numbers are independent, with the same seed
    bool use_cache = true;     ///< see NextToken
};

/// Allowed ranges for the numbers in SampleOptions.
namespace sample_limits {
inline constexpr Range tokens{0, 1e9}, temperature{0, 1e6}, top_k{0, 2147483647},
    top_p{.min = 0, .max = 1, .min_is_open = true}, min_p{0, 1},
    repetition_penalty{.min = 0, .max = 1e6, .min_is_open = true};
}

/// Returns the next token for a model's logits. Applies temperature, then top_k, min_p and top_p, and draws
/// with u, a uniform number in [0, 1). Temperature 0 takes the largest logit, and the smallest id among equal
/// ones. Throws Error without logits, and when a logit is not finite.
std::int32_t choose_token(std::span<const double> logits, const SampleOptions& options, double u);

/// Applies the repetition penalty to the logits for the tokens in `text`.
void penalise_repetition(std::span<double> logits, std::span<const std::int32_t> text, double penalty);

/// Chooses tokens by a model's logits. Never draws an id without a text.
class TokenChooser {
  public:
    /// Throws Error for an option outside its range.
    TokenChooser(const LanguageModel& model, const SampleOptions& options);
    /// Returns the token after `text`, for the model's logits [V] after it. Draw number `index` of text
    /// `number` uses the Philox counter {index, number} under the seed.
    std::int32_t choose(std::vector<double> logits, std::span<const std::int32_t> text, std::uint64_t number,
                        std::int64_t index) const;
    /// Whether choose() always returns the most likely token in the model's vocabulary, so that the logits
    /// themselves are not needed.
    bool takes_most_likely() const;

  private:
    void remove_undrawable(std::vector<double>& logits) const;

    SampleOptions options_;
    std::int64_t vocabulary_;
    std::int64_t drawable_;                  // ids from drawable_ on have no text and are never drawn
    std::vector<std::size_t> without_text_;  // ids below drawable_ whose tokens have no text
};

/// A text that is being drawn. Its draws depend on the number and on the seed only, see
/// SampleOptions::number.
struct GrowingText {
    std::int64_t slot = 0;                 ///< see NextToken
    std::span<const std::int32_t> tokens;  ///< at least one, all inside the vocabulary
    std::uint64_t number = 0;
    std::int64_t drawn = 0;  ///< how many of the tokens were drawn
};

/// Draws texts token by token.
class TokenSampler {
  public:
    /// For up to `slots` texts at once. Keeps a reference to the model. Throws Error for an option outside
    /// its range. Ignores options.number.
    TokenSampler(const LanguageModel& model, const SampleOptions& options, std::int64_t slots = 1)
        : chooser_(model, options), next_(model, slots, options.use_cache) {}

    /// Prepares for texts of `length` tokens, see NextToken::reserve().
    void reserve(std::int64_t length) { next_.reserve(length); }
    /// Returns the token after each text; the model sees the tokens in a TextWindow. The texts must be in
    /// slot order.
    std::vector<std::int32_t> next(std::span<const GrowingText> texts);
    /// Forgets the slot's text, see NextToken::begin_text().
    void begin_text(std::int64_t slot) { next_.begin_text(slot); }

  private:
    TokenChooser chooser_;
    NextToken next_;
};

/// Throws Error for an empty prompt and for ids outside the model's vocabulary.
void check_prompt(const LanguageModel& model, std::span<const std::int32_t> prompt);

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
/// Ignores options.number, prompt and stop. Throws Error before the first draw for an empty prompt, for ids
/// outside the vocabulary, and for options outside their ranges. With ModelConfig::prefix, a text ends when
/// the context is full, because the model must not lose its prompt; a longer prompt is an Error.
void sample_token_batch(const LanguageModel& model, std::span<const TokenRequest> requests,
                        const SampleOptions& options, std::int64_t batch, const BatchTokenHandler& handler);

/// Receives a drawn token; returns false to end the text with it.
using TokenHandler = std::function<bool(std::int32_t token)>;

/// Returns the tokens of a batch of one request, with the number options.number.
std::vector<std::int32_t> sample_tokens(const LanguageModel& model, std::span<const std::int32_t> prompt,
                                        const SampleOptions& options, const TokenHandler& on_token = {});

/// Returns a prompt's tokens, with the tokens that the tokenizer puts before a text. If the prompt is empty,
/// returns the tokens that a text without a prompt begins with: the tokens that the tokenizer puts before a
/// text, or a line break. Throws Error "WHERE: ..." when the model has no tokenizer, or when the prompt
/// contains a character that the tokenizer does not know.
std::vector<std::int32_t> prompt_tokens(const LanguageModel& model, const std::string& prompt,
                                        const std::string& where = "prompt");

struct SampledText {
    std::string text;                  ///< without the prompt, up to a stop text or an end token
    std::vector<std::int32_t> tokens;  ///< all drawn tokens, including stop-text and end tokens
    bool stopped = false;              ///< by a stop text or an end token
};

/// Makes a text from drawn tokens.
class SampledTextBuilder {
  public:
    /// Receives the text piece by piece, in whole characters.
    using PieceHandler = std::function<void(std::string_view piece)>;
    /// `place` is the first token's: after a prompt the middle. Throws Error if the model has no tokenizer.
    SampledTextBuilder(const LanguageModel& model, const SampleOptions& options, TextPlace place,
                       PieceHandler on_text);

    /// Returns false once a stop text or an end token was found.
    bool add(std::int32_t token);
    /// Call after the last token.
    SampledText finish();

  private:
    void append(const std::string& piece);

    StreamingDecoder decoder_;
    StopTexts stop_;
    std::vector<std::int32_t> end_tokens_;
    PieceHandler on_text_;
    SampledText result_;
};

/// Continues the prompt. on_text receives the text piece by piece, in whole characters. Throws Error when the
/// model has no tokenizer, or when the prompt contains a character that the tokenizer does not know.
SampledText sample_text(const LanguageModel& model, const SampleOptions& options,
                        const SampledTextBuilder::PieceHandler& on_text = {});

/// Returns the prompt followed by the text from sample_text().
std::string sample(const LanguageModel& model, const SampleOptions& options);

/// Receives the texts: pieces in whole characters, and each text when it is complete.
struct BatchTextHandler {
    std::function<void(std::size_t text, std::string_view piece)> on_text = {};
    std::function<void(std::size_t text, SampledText sampled)> on_end = {};
};

/// Continues each prompt `samples` times as sample_text() does, up to rounding. Text number i belongs to
/// prompt i / samples and has the number i % samples, so a prompt's texts do not depend on the other prompts.
/// For an empty prompt see prompt_tokens(). Throws Error "prompt 3: ..." (counted from 1), before the first
/// draw, when a prompt contains a character that the tokenizer does not know. Batch 0: as many texts at once
/// as half of the available memory has room for if they are the longest ones and draw all tokens, at least 1
/// and at most 64.
void sample_text_batch(const LanguageModel& model, std::span<const std::string> prompts, std::size_t samples,
                       const SampleOptions& options, std::int64_t batch, const BatchTextHandler& handler);

}  // namespace gradtile
