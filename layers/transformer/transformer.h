#pragma once
/// The language model: GPT-2 style (Radford et al. 2019) and Llama style (Touvron et al. 2023) from one
/// config.
#include <functional>
#include <optional>
#include <vector>

#include <gradtile/layers/cross_entropy_head.h>
#include <gradtile/layers/embedding.h>
#include <gradtile/layers/transformer/transformer_block.h>

namespace gradtile {

/// What one training pass is told beside the data.
struct ForwardOptions {
    double gradient_scale = 1.0;  ///< gradients are those of this times the loss
    /// float64 [1] on the device: what the sum of the losses is divided by; none: by how many targets count.
    Tensor target_count = {};
    DropoutKey dropout = {};  ///< a default one drops nothing
    ForwardHooks hooks = {};
};

/// Token embedding (+ learned positions), dropout, `layers` blocks, a last norm, the vocabulary head.
///
/// Parameters (out x in), GPT-2 style:   wte.weight [V,C], wpe.weight [context,C],
///     h.I.{ln_1,ln_2}.{weight,bias}, h.I.attn.{qkv,proj}.{weight,bias}, h.I.mlp.{fc,proj}.{weight,bias},
///     ln_f.{weight,bias}, head.weight [V,C] unless tied to wte.weight.
/// Llama style: no wpe, norm_1, norm_2 and norm_f for the ln_*, h.I.mlp.{gate_up,down}, and with qk_norm
///     h.I.attn.{q_norm,k_norm}.weight [D].
struct Transformer {
    struct Saved {
        Embedding::Saved wte;
        PositionEmbedding::Saved wpe;
        Dropout::Saved dropout;
        std::vector<TransformerBlock::Saved> blocks;
        ConfiguredNorm::Saved norm_f;
        CrossEntropyHead::Saved head;
    };
    ModelConfig config;
    Embedding wte;
    std::optional<PositionEmbedding> wpe;
    Dropout dropout;
    std::vector<TransformerBlock> blocks;
    ConfiguredNorm norm_f;
    CrossEntropyHead head;

    /// Declares the parameters; the store is allocated and initialised by the caller. Throws Error on an
    /// invalid config or one without a vocabulary.
    Transformer(const ModelConfig& config, ParameterStore& parameters);

    /// The mean loss over the targets that are not -1, float64 [1] on the device. tokens and targets [B,T]
    /// int32, T at most the context. The head's weight gradient accumulates already here, see
    /// CrossEntropyHead; everything else in backward.
    Tensor forward(const Context& ctx, const Tensor& tokens, const Tensor& targets, Saved& saved,
                   const ForwardOptions& options = {}) const;
    /// Accumulates every parameter's gradient; `hooks` hear of each one once, as soon as it is complete.
    void backward(const Context& ctx, const Saved& saved, const BackwardHooks& hooks = {}) const;

    /// Float64 [2]: the sum of the losses and the number of targets that counted. Nothing is kept, no
    /// gradient is touched, nothing is dropped.
    Tensor evaluate(const Context& ctx, const Tensor& tokens, const Tensor& targets) const;
    /// [B,V] float32 (float64 for float64 weights): what follows the last of tokens [B,T].
    Tensor logits(const Context& ctx, const Tensor& tokens) const;

  private:
    Parameter last_parameter_;
    void check_tokens(const Tensor& tokens) const;
    Tensor embed(const Context& ctx, const Tensor& tokens, const DropoutKey& key, Saved& saved) const;
    Tensor features(const Context& ctx, const Tensor& tokens) const;
};

/// Elements of all parameters; nothing is allocated.
std::int64_t parameter_count(const ModelConfig& config);

/// Floating-point operations of one training step per token (forward 1/3, backward 2/3): 6 for each element
/// of a weight matrix that a token is multiplied with, the head's included and embedding look-ups not, and 12
/// * width per layer for each visible key, (T + 1) / 2 of them on average. Recomputation is not counted: this
/// is the numerator of model FLOP utilisation.
double flops_per_token(const ModelConfig& config, std::int64_t sequence);

}  // namespace gradtile
