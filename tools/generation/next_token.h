#pragma once
/// Next-token logits for a growing text.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <gradtile/layers/transformer/key_value_cache.h>
#include <gradtile/tools/generation/token_step.h>
#include <gradtile/train/model/language_model.h>

namespace gradtile {

/// Returns the context for generation. On a CPU, it allocates from a RecyclingAllocator. On a GPU, tokens
/// need activations of different lengths. The arena is twice as large as the longest pass needs, because the
/// lengths leave gaps that the dry run does not have. Each length has matrix products of new shapes, for
/// which timing algorithms takes longer than it saves, so the context is deterministic and does not time
/// them. `longest_pass` allocates in a dry run everything that the context allocates for a pass.
Context generation_context(const LanguageModel& model,
                           const std::function<void(const Context& dry)>& longest_pass);

/// The text window that the model sees: at first the last `context` tokens. Each time the text has grown
/// beyond the context, the window's oldest half is dropped. So a window seldom changes its beginning: with
/// learned or rotary positions, a change gives every cached key another position, and the whole window must
/// be read again.
class TextWindow {
  public:
    explicit TextWindow(std::int64_t context) : context_(context) {}
    /// Returns the first visible token in a text of `length` tokens. A text may only grow from call to call.
    std::int64_t begin_of(std::int64_t length);

  private:
    std::int64_t context_;
    std::int64_t begin_ = -1;  // -1: no text yet
};

/// Gives the same logits with a cache and without, up to rounding.
class NextToken {
  public:
    /// Without a cache, every call computes the whole window. Keeps a reference to the model.
    NextToken(const LanguageModel& model, bool use_cache);

    /// Returns the logits [V] after `text`, which has at least one token. The model reads only the tokens
    /// after the prefix that this call's window shares with the previous call's window.
    std::vector<double> logits(std::span<const std::int32_t> text);
    /// Returns the most likely token after `text`, the smallest id among equal ones. On a GPU, with a cache,
    /// only the token is copied to the host. Throws Error when a logit is not finite.
    std::int32_t most_likely(std::span<const std::int32_t> text);

  private:
    std::span<const std::int32_t> unread_part(std::span<const std::int32_t> text);
    std::vector<double> logits_after(std::span<const std::int32_t> unread);
    bool is_step(std::span<const std::int32_t> unread) const { return step_ && unread.size() == 1; }
    TokenStep::Input step_input(std::span<const std::int32_t> unread);

    const LanguageModel& model_;
    Context ctx_;
    TextWindow window_;
    std::int64_t begin_ = 0;                // the previous call's window begins here
    std::vector<std::int32_t> read_;        // the tokens in that window
    std::unique_ptr<KeyValueCache> cache_;  // null: no cache
    std::unique_ptr<TokenStep> step_;       // null: on a CPU, and without a cache
};

/// Returns the largest logit's index, the smallest index among equal logits. Throws Error when a logit is not
/// finite.
std::int32_t most_likely_token(std::span<const double> logits);

}  // namespace gradtile
