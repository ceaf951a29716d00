#pragma once
/// Evaluation: the loss over a whole sequence of tokens.
#include <functional>
#include <optional>

#include <gradtile/train/data/data_loader.h>
#include <gradtile/train/language_model.h>
#include <gradtile/train/parallel/communicator.h>

namespace gradtile {

struct Evaluation {
    double loss = 0.0;         ///< mean -ln p of the counted targets
    std::int64_t targets = 0;  ///< number of counted targets
    double perplexity = 0.0;   ///< e^loss
    /// The loss in bits per character and per byte of the counted targets' text, comparable between
    /// tokenizers. Special tokens are left out, with their losses. Set only if there is a tokenizer and a
    /// target with text.
    std::optional<double> bits_per_character = {}, bits_per_byte = {};
};

/// The tokens that evaluation reads, and the host batch that it reads them into.
struct EvaluationData {
    SequentialLoader loader;
    Batch batch;
};

struct EvaluateOptions {
    std::int64_t batch = 12;  ///< windows per batch; changes the result only by rounding
    std::int64_t ignore_token = -1;
    Packing packing = {};     ///< the packing that was used in training
    std::int64_t stride = 0;  ///< see SequentialOptions
    /// Called after each batch.
    std::function<void(std::int64_t windows_done, std::int64_t windows)> on_progress = {};
};

/// Evaluates windows of the model's context, in order: every token but the first is predicted once, from the
/// tokens before it in its window. If the sequence has examples, only the tokens that are marked as targets
/// count. Throws Error for fewer than two tokens.
Evaluation evaluate(const LanguageModel& model, const TokenSequence& tokens,
                    const EvaluateOptions& options = {});
/// Evaluates like the function above, with activations allocated from `ctx` (a training arena).
Evaluation evaluate(const Context& ctx, const LanguageModel& model, const TokenSequence& tokens,
                    const EvaluateOptions& options = {});
/// Returns only the mean loss and decodes no text. Each process evaluates every communicator.size()-th batch.
///
/// After each round of one batch per process, every process calls `go_on` with the number of windows that all
/// processes together have evaluated. `go_on` must return the same value in every process. If it returns
/// false, the evaluation stops and the result is nullopt.
std::optional<double> mean_loss(const Context& ctx, const Transformer& model, EvaluationData& data,
                                const Communicator& communicator,
                                const std::function<bool(std::int64_t windows_done)>& go_on);

/// Copies the batch to ctx's device; returns `host` itself when that device is the CPU.
Batch upload(const Context& ctx, const Batch& host);

}  // namespace gradtile
