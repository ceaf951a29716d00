#pragma once
/// A language model's last layer: projection onto the vocabulary and softmax cross-entropy. Training works on
/// row chunks, so that the full logits are never stored.
#include <string>

#include <gradtile/core/enum_names.h>
#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/linear.h>

namespace gradtile {

/// How a logit x is limited to (-c, c): c tanh(x / c) (Gemma Team 2024, "Gemma 2"), or x / sqrt(1 + (x /
/// c)^2) (modded-nanogpt, 2025), which needs no exponential.
enum class SoftcapForm { tanh, root };

struct LogitSoftcap {
    double limit = 0.0;  ///< c; 0: logits are not limited
    SoftcapForm form = SoftcapForm::tanh;

    bool operator==(const LogitSoftcap&) const = default;
};

/// logits = x weight^T, limited by the softcap if there is one; loss = mean(logsumexp(logits) -
/// logits[target]) over all targets that are not ignored. x [..,C] has the weight's dtype; targets [..] are
/// int32, and -1 means "ignored". On the CPU, any other target outside [0, V) throws Error with position,
/// value and V. A GPU step does not wait for the device, so there such a target makes the loss NaN, and the
/// trainer refuses the step; the host checks data files against the vocabulary when it opens them. Logits,
/// softmax and loss are float32 (float64 for float64 x), and the mean is summed in float64. Only in training
/// on a GPU, logits of a 16-bit x are rounded to x's type.
struct CrossEntropyHead {
    /// forward computes the gradients together with the loss, chunk by chunk, so backward only computes dx.
    struct Saved {
        Tensor dx;  ///< [..,C]
    };

    /// One chunk's logits, and their gradients in the same memory.
    struct Chunk {
        Tensor logits;    ///< [rows, columns]; on a GPU, zero columns follow the vocabulary's
        Tensor d_logits;  ///< same shape, in x's dtype
    };

    /// Registers name.weight [V,C], normal with the given standard deviation.
    CrossEntropyHead(ParameterStore& parameters, const std::string& name, std::int64_t vocabulary,
                     std::int64_t width, double init_std = 0.02);
    /// Shares a weight [V,C], usually the token embedding's. On a GPU, the weight should be padded to
    /// vocabulary_multiple (ParameterStore::add), otherwise products are slow.
    explicit CrossEntropyHead(const Parameter& weight);

    /// Returns the loss sum divided by target_count, float64 [1] on the device. By default, target_count is
    /// the number of targets that are not ignored. The result is then the mean loss over these targets (0 if
    /// all targets are ignored). If target_count is the count in a whole step, the micro-batch results add up
    /// to the step's mean. The same pass adds the gradient of gradient_scale * loss to the weight's gradient.
    /// So a loss factor must be passed to forward, not to backward.
    Tensor forward(const Context& ctx, const Tensor& x, const Tensor& targets, Saved& saved,
                   double gradient_scale = 1.0, const Tensor& target_count = {}) const;
    /// Returns dx [..,C], the gradient of gradient_scale * loss.
    Tensor backward(const Context& ctx, const Saved& saved) const;

    /// Allocates the chunk that forward uses for `rows` rows of x.
    Chunk training_chunk(const Context& ctx, std::int64_t rows) const;

    /// Used for evaluation; computes no gradients. Returns float64 [2]: the loss sum and the number of
    /// targets that are not ignored.
    Tensor loss(const Context& ctx, const Tensor& x, const Tensor& targets) const;
    /// Used for evaluation, like loss(). Returns the loss per target, float64, in the same shape as targets;
    /// 0 where the target is ignored.
    Tensor losses(const Context& ctx, const Tensor& x, const Tensor& targets) const;
    /// Used for sampling: returns logits [..,V] in float32 (float64 for float64 x), in `result` if it is
    /// defined. x should have few rows, because all their logits are stored.
    Tensor logits(const Context& ctx, const Normed& x, Tensor result = {}) const;

    Parameter weight;
    LogitSoftcap softcap = {};

  private:
    /// Returns the losses of rows x [N,C], and writes to `count` how many targets [N] are not ignored.
    Tensor row_losses(const Context& ctx, const Tensor& x, const Tensor& targets, const Tensor& count) const;
};

template <>
struct EnumNames<SoftcapForm> {
    static constexpr std::array names = {std::pair{SoftcapForm::tanh, std::string_view("tanh")},
                                         std::pair{SoftcapForm::root, std::string_view("root")}};
};

}  // namespace gradtile
