#pragma once
/// The last layer of a language model: projection onto the vocabulary and softmax cross-entropy. Training
/// works on chunks of rows, so that the full logits are never stored.
#include <string>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

/// logits = x weight^T; loss = the mean of logsumexp(logits) - logits[target] over all targets that are not
/// ignored. x [..,C] has the weight's dtype; targets [..] are int32, and -1 means "ignored". On the CPU, any
/// other target outside [0, V) throws Error with position, value and V. A GPU step does not wait for the
/// device, so there such a target makes the loss NaN, and the trainer refuses the step; the host checks data
/// files against the vocabulary when it opens them. Logits, softmax and loss are float32 (float64 for float64
/// x), and the mean is summed in float64. Only in training on a GPU, logits of a 16-bit x are rounded to x's
/// type.
struct CrossEntropyHead {
    /// forward computes the gradients together with the loss, chunk by chunk, so backward only computes dx.
    struct Saved {
        Tensor dx;  ///< [..,C]
    };

    /// The logits of one chunk, and their gradients in the same memory.
    struct Chunk {
        Tensor logits;    ///< [rows, columns]; on a GPU with columns of zeros after the vocabulary's
        Tensor d_logits;  ///< a tensor of the same shape in x's dtype
    };

    /// Registers name.weight [V,C], normal with the given standard deviation.
    CrossEntropyHead(ParameterStore& parameters, const std::string& name, std::int64_t vocabulary,
                     std::int64_t width, double init_std = 0.02);
    /// Shares a weight [V,C], usually the token embedding's. On a GPU, the weight should be padded to
    /// vocabulary_multiple (ParameterStore::add), otherwise products are slow.
    explicit CrossEntropyHead(const Parameter& weight);

    /// Returns the sum of the losses divided by target_count, float64 [1] on the device. The default count is
    /// the number of targets that are not ignored. The result is then the mean loss of these targets (0 if
    /// all targets are ignored). With the count of a whole step, the results of its micro-batches add up to
    /// the mean of the step. The same pass adds the gradient of gradient_scale * loss to the weight's
    /// gradient. So a factor of the loss must be passed to forward, not to backward.
    Tensor forward(const Context& ctx, const Tensor& x, const Tensor& targets, Saved& saved,
                   double gradient_scale = 1.0, const Tensor& target_count = {}) const;
    /// Returns dx [..,C], the gradient of gradient_scale * loss.
    Tensor backward(const Context& ctx, const Saved& saved) const;

    /// Allocates the chunk that forward uses for `rows` rows of x.
    Chunk training_chunk(const Context& ctx, std::int64_t rows) const;

    /// Used for evaluation; computes no gradients. Returns float64 [2]: the sum of the losses and the number
    /// of targets that are not ignored.
    Tensor loss(const Context& ctx, const Tensor& x, const Tensor& targets) const;
    /// Used for evaluation, like loss(). Returns the loss of each target, float64 in the shape of targets; 0
    /// where the target is ignored.
    Tensor losses(const Context& ctx, const Tensor& x, const Tensor& targets) const;
    /// Used for sampling: returns logits [..,V] in float32 (float64 for float64 x). x should have few rows,
    /// because all their logits are stored.
    Tensor logits(const Context& ctx, const Tensor& x) const;

    Parameter weight;

  private:
    /// Returns the losses of rows x [N,C], and writes the number of targets [N] that are not ignored to
    /// `count`.
    Tensor row_losses(const Context& ctx, const Tensor& x, const Tensor& targets, const Tensor& count) const;
};

}  // namespace gradtile
