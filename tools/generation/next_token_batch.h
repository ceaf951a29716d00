#pragma once
/// Next-token logits for several growing texts, computed together.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <gradtile/layers/transformer/key_value_cache.h>
#include <gradtile/tools/generation/next_token.h>
#include <gradtile/train/model/language_model.h>

namespace gradtile {

/// Gives the same logits as NextToken for each text, up to rounding, in less time: a pass reads every weight
/// once for all texts. Each text has a slot, with its own cache and TextWindow.
class NextTokenBatch {
  public:
    /// Allocates caches for `slots` texts. Keeps a reference to the model.
    NextTokenBatch(const LanguageModel& model, std::int64_t slots);

    /// A text and its slot. The text has at least one token.
    struct Text {
        std::int64_t slot = 0;
        std::span<const std::int32_t> tokens;
    };
    /// Call before logits() with a new text in this slot.
    void begin_text(std::int64_t slot) { slot_at(slot) = Slot(context_); }
    /// Returns the logits [V] after each text. The texts must be in slot order. Since the last call or
    /// begin_text(), a text must not have changed except for new tokens at its end.
    std::vector<std::vector<double>> logits(std::span<const Text> texts);
    /// Returns the most likely token after each text, like NextToken::most_likely().
    std::vector<std::int32_t> most_likely(std::span<const Text> texts);

    /// Bytes for one text's keys and values.
    static std::size_t bytes_of_slot(const LanguageModel& model);

  private:
    struct Slot {
        explicit Slot(std::int64_t context) : window(context) {}
        TextWindow window;
        std::int64_t begin = 0;   // the window's first token
        std::int64_t cached = 0;  // tokens in the window that the cache holds
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
    TextToRead unread_part(const Text& text);
    Parts parts_of(std::span<const Text> texts);
    std::vector<std::vector<double>> logits_of(const Parts::Pass& pass);

    const LanguageModel& model_;
    std::int64_t context_;
    Context ctx_;
    KeyValueCache cache_;
    std::vector<Slot> slots_;
    std::unique_ptr<TokenStep> step_;  // null on a CPU
};

}  // namespace gradtile
