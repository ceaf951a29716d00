#pragma once
/// Next-token logits for growing texts.
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
/// need activations of different lengths. The arena is larger than the longest pass needs by arena_slack(),
/// because the lengths leave gaps that the dry run does not have. Each length has matrix products of new
/// shapes, for which timing algorithms takes longer than it saves, so the context is deterministic and does
/// not time them. `longest_pass` allocates in a dry run everything that the context allocates for a pass.
Context generation_context(const LanguageModel& model,
                           const std::function<void(const Context& dry)>& longest_pass);

/// Computes, in a dry run, the longest pass of `slots` texts whose windows fill the cache. Its activations
/// come from `dry`'s allocator.
void plan_longest_pass(const Context& dry, const Transformer& transformer, const KeyValueCache& cache,
                       std::int64_t slots);

/// How much larger than the longest pass the arena of generation_context() is.
constexpr double arena_slack(Device device) {
    return device.is_cpu() ? 1.0 : 2.0;
}

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

/// Several texts are computed together, because a pass reads every weight once for all of them. Each text has
/// a slot, with its own TextWindow, and its keys and values in a common cache. Gives the same logits with a
/// cache and without, and for a text alone and among others, up to rounding.
///
/// With ModelConfig::prefix, a text's tokens in the slot's first call are its prompt, which the model reads
/// in both directions. Such a text keeps its prompt: texts longer than the context are refused.
class NextToken {
  public:
    /// For `slots` texts. Without a cache, every call computes whole windows. Keeps a reference to the model.
    explicit NextToken(const LanguageModel& model, std::int64_t slots = 1, bool use_cache = true);

    /// Prepares for texts of `length` tokens, or of the context if that is shorter, and allocates the keys
    /// and values of `texts` texts of this length. Without this call, and for longer texts, it prepares for
    /// twice the longest text. Memory for keys and values beyond is allocated for tokens that exist, and at
    /// most half as much again; a text takes whole blocks of KeyValueCache.
    void reserve(std::int64_t length, std::int64_t texts = 0);
    /// A text and its slot. The text has at least one token.
    struct Text {
        std::int64_t slot = 0;
        std::span<const std::int32_t> tokens;
    };
    /// Forgets the slot's text, whose blocks other texts can take. Without this call, a text is taken for the
    /// continuation of the slot's text before if it begins with it, and then keeps its window.
    void begin_text(std::int64_t slot);
    /// Returns the logits [V] after each text. The texts must be in slot order. The model reads only the
    /// tokens after the prefix that a text's window shares with the slot's window in the previous call.
    std::vector<std::vector<double>> logits(std::span<const Text> texts);
    /// Returns the most likely token after each text, the smallest id among equal ones. On a GPU, with a
    /// cache, only the tokens are copied to the host. Throws Error when a logit is not finite.
    std::vector<std::int32_t> most_likely(std::span<const Text> texts);

  private:
    struct Slot {
        explicit Slot(std::int64_t context) : window(context) {}
        TextWindow window;
        std::int64_t begin = 0;          // the window's first token
        std::int64_t prompt = 0;         // tokens in the first call
        std::vector<std::int32_t> read;  // the window's tokens, which the cache holds
    };
    /// The parts of a call: texts that read one token, which are a step on a GPU, and the other texts in
    /// passes. `step_indices` and `text_indices` are indices into the call's texts.
    struct Parts {
        std::vector<TokenStep::Input> step;
        std::vector<std::size_t> step_indices;
        struct Pass {
            std::vector<TextToRead> texts;
            std::vector<std::size_t> text_indices;
            std::int64_t tokens = 0;
        };
        std::vector<Pass> passes;
    };
    Slot& slot_at(std::int64_t slot);
    void make_room_for(std::span<const Text> texts);
    void reserve_blocks(std::int64_t count);
    void take_blocks(std::span<const TextToRead> unread);
    void make_step();
    TextToRead unread_part(const Text& text);
    Parts parts_of(std::span<const Text> texts);
    std::vector<std::vector<double>> logits_of(const Parts::Pass& pass);
    Tensor logits_without_cache(const TextToRead& text);

    const LanguageModel& model_;
    std::int64_t context_;
    bool use_cache_;
    std::int64_t room_ = 0;  // tokens of a text for which there is memory
    Context ctx_;
    std::vector<Slot> slots_;
    std::unique_ptr<KeyValueCache> cache_;  // null: no cache, or no room yet
    std::unique_ptr<TokenStep> step_;       // null: on a CPU, and without a cache
};

/// Returns the largest logit's index, the smallest index among equal logits. Throws Error when a logit is not
/// finite.
std::int32_t most_likely_token(std::span<const double> logits);

}  // namespace gradtile
