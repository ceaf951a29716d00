#pragma once
/// Evaluation: the loss over a whole sequence of tokens.
#include <functional>
#include <optional>

#include <gradtile/train/data/data_loader.h>
#include <gradtile/train/language_model.h>
#include <gradtile/train/parallel/communicator.h>

namespace gradtile {

struct Evaluation {
    double loss = 0.0;         ///< mean -ln p of the tokens that count
    std::int64_t targets = 0;  ///< how many count
    double perplexity = 0.0;   ///< e^loss
    /// Of the text that the targets are; only with a tokenizer, and when every target counts.
    std::optional<double> bits_per_character = {}, bits_per_byte = {};
};

struct EvaluateOptions {
    std::int64_t batch = 12;  ///< windows at once; the result depends on it only in rounding
    std::int64_t ignore_token = -1;
};

/// Non-overlapping windows of the model's context, in order: every token but the first is predicted once,
/// from what stands before it in its window. Throws Error for fewer than two tokens.
Evaluation evaluate(const LanguageModel& model, const TokenSequence& tokens,
                    const EvaluateOptions& options = {});
/// The same with activations from another context (a training arena).
Evaluation evaluate(const Context& ctx, const LanguageModel& model, const TokenSequence& tokens,
                    const EvaluateOptions& options = {});
/// Only the mean loss: the text is not looked at. Processes take the batches in turn.
///
/// `go_on` is called after each turn with the windows done so far by all processes, by all of them in the
/// same order; once it is false everywhere the loss is left alone: none.
std::optional<double> mean_loss(const Context& ctx, const Transformer& model, SequentialLoader& loader,
                                const Batch& batch, const Communicator& communicator,
                                const std::function<bool(std::int64_t windows_done)>& go_on);

/// The batch on ctx's device; itself when that is the host.
Batch upload(const Context& ctx, const Batch& host);

}  // namespace gradtile
