#pragma once
/// Evaluation: the loss over a whole token sequence.
#include <functional>
#include <optional>

#include <gradtile/train/data/data_loader.h>
#include <gradtile/train/model/language_model.h>

namespace gradtile {

struct Evaluation {
    double loss = 0.0;         ///< mean -ln p over the counted targets
    std::int64_t targets = 0;  ///< how many targets are counted
    double perplexity = 0.0;   ///< e^loss
    /// The loss in bits per character and per byte of the counted targets' text, comparable between
    /// tokenizers. Special tokens are left out, with their losses. Set only if there is a tokenizer and a
    /// target with text.
    std::optional<double> bits_per_character = {}, bits_per_byte = {};
};

struct EvaluateOptions {
    std::int64_t batch = 12;  ///< windows per batch; changes the result only by rounding
    std::int64_t ignore_token = -1;
    Packing packing = {};     ///< the packing that was used in training
    std::int64_t stride = 0;  ///< see SequentialOptions
    /// Called after each batch.
    std::function<void(std::int64_t windows_done, std::int64_t windows)> on_progress = {};
};

/// Evaluates windows as long as the model's context, in order: every token but the first is predicted once,
/// from the tokens before it in its window. If the sequence has examples, only the tokens that are marked as
/// targets count. Throws Error for fewer than two tokens, and when the loss of a target is infinite or NaN:
/// only weights or activations that are not finite, or overflow, give such a loss.
Evaluation evaluate(const LanguageModel& model, const TokenSequence& tokens,
                    const EvaluateOptions& options = {});
/// Evaluates like the function above, with activations allocated from `ctx` (a training arena).
Evaluation evaluate(const Context& ctx, const LanguageModel& model, const TokenSequence& tokens,
                    const EvaluateOptions& options = {});
}  // namespace gradtile
