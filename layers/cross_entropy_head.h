#pragma once
/// The end of a language model: projection onto the vocabulary and softmax cross-entropy, in chunks of rows,
/// so that the full logits never exist in training.
#include <string>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

/// logits = x weight^T, loss = mean over the targets that count of logsumexp(logits) - logits[target].
/// x [..,C] in the weight's dtype, targets [..] int32: -1 means "ignored", any other value outside [0, V)
/// throws Error naming position, value and V on the CPU. A GPU step waits for nothing, so there such a target
/// makes the loss NaN, and the trainer refuses the step; data files are checked against the vocabulary on the
/// host when they are opened. Softmax and loss are float32 (float64 for float64 x), the mean is summed in
/// float64. Logits are float32, too; only in training on a GPU are those of a 16-bit x rounded to its type.
struct CrossEntropyHead {
    /// The gradient is made together with the loss, chunk by chunk; this is what remains of it.
    struct Saved {
        Tensor dx;  ///< [..,C]
    };

    /// The logits that exist at the same time, and their gradients over the same memory.
    struct Chunk {
        Tensor logits;    ///< [rows, columns]; on a GPU with columns of zeros behind the vocabulary's
        Tensor d_logits;  ///< the same shape in x's dtype
    };

    /// Registers name.weight [V,C], normal with the given standard deviation.
    CrossEntropyHead(ParameterStore& parameters, const std::string& name, std::int64_t vocabulary,
                     std::int64_t width, double init_std = 0.02);
    /// Shares a weight [V,C], usually the token embedding's; fast on a GPU when it was added to its store
    /// with vocabulary_multiple.
    explicit CrossEntropyHead(const Parameter& weight);

    /// The sum of the losses over target_count, float64 [1] on the device: where none is given, over how many
    /// targets count, so that it is their mean (0 when every target is ignored). Micro-batches of one step,
    /// given the count of the whole step, sum to its mean, however the targets are spread over them. In the
    /// same pass the weight's gradient accumulates, times gradient_scale: what the loss is multiplied with
    /// later must be given here.
    Tensor forward(const Context& ctx, const Tensor& x, const Tensor& targets, Saved& saved,
                   double gradient_scale = 1.0, const Tensor& target_count = {}) const;
    /// dx [..,C] of gradient_scale * loss.
    Tensor backward(const Context& ctx, const Saved& saved) const;

    /// What forward allocates to work through `rows` rows of x.
    Chunk training_chunk(const Context& ctx, std::int64_t rows) const;

    /// For evaluation, without gradients: float64 [2], the sum of the losses and how many targets counted.
    Tensor loss(const Context& ctx, const Tensor& x, const Tensor& targets) const;
    /// [..,V] in float32 (float64 for float64 x): for sampling, from the few rows that need it.
    Tensor logits(const Context& ctx, const Tensor& x) const;

    Parameter weight;
};

}  // namespace gradtile
