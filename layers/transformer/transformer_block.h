#pragma once
/// One transformer block, and the sum of streams that it may read.
#include <optional>
#include <string>
#include <vector>

#include <gradtile/layers/dropout.h>
#include <gradtile/layers/learned_factors.h>
#include <gradtile/layers/transformer/mlp.h>
#include <gradtile/layers/transformer/multi_head_attention.h>

namespace gradtile {

/// A block's input as a learned sum, if config.x0_lambdas: stream * x + x0 * (the first block's input), where
/// x is the output of the block below. Else the input is x itself.
///
/// Parameters of block h.I: h.I.mix.stream and h.I.mix.x0 [1], which start at 1 and 0.
struct StreamMix {
    using Saved = WeightedSum::Saved;
    std::optional<WeightedSum> sum;

    StreamMix(ParameterStore& parameters, const std::string& name, const ModelConfig& config);
    bool exists() const { return sum.has_value(); }
    /// `x0` is the first block's input; undefined: no x0_lambdas.
    Residual forward(const Context& ctx, const Residual& stream, const Tensor& x0, Saved& saved) const;
    /// Computes the sum again, with the same bits.
    Tensor recompute(const Context& ctx, const Saved& saved) const;
    /// Returns the gradient of the stream in dy's memory, and adds to d_x0, which is undefined as long as
    /// nothing has been added.
    SummedGradient backward(const Context& ctx, const SummedGradient& dy, const Saved& saved, Tensor& d_x0,
                            const BackwardHooks& hooks) const;
};

/// x = x + dropout(attn(norm_1(x)));  x = x + dropout(mlp(norm_2(x)));  x [B,T,C]. Other kinds of block have
/// norms at other places, see BlockKind.
///
/// The values that forward saves, in units of x, for GPT-2's shapes (without LSE and statistics):
///   Recompute::none         16: x, norm_1's output, qkv 3, o, norm_2's input and output, MLP 4 + 4
///   Recompute::activations  10: all except the norm outputs and the activation output. Backward
///                               recomputes each in one pass over memory, just before it is needed
///   Recompute::block         1: x. Backward first repeats the forward pass with the same dropout masks,
///                               without the MLP's last product
///
/// A norm of a branch's output also saves that output at the first two levels, and a gate attention's gated
/// output at the first one. A sum of streams (StreamMix) saves the output of the block below at all levels,
/// but Recompute::block then does not save x.
///
/// Parameters of block name: name.mix, name.ln_1, name.attn, name.ln_post_1, name.ln_2, name.mlp,
/// name.ln_post_2, without the norms that the kind of block does not have (Norm::rms: norm_1, norm_post_1 and
/// so on).
struct TransformerBlock {
    /// What the block's layers save.
    struct Activations {
        NormLayer::Saved norm_1;
        MultiHeadAttention::Saved attn;
        NormLayer::Saved norm_post_1;
        Dropout::Saved attn_dropout;
        NormLayer::Saved norm_2;
        Mlp::Saved mlp;
        NormLayer::Saved norm_post_2;
        Dropout::Saved mlp_dropout;
    };
    struct Saved {
        StreamMix::Saved mix;
        // With Recompute::block, only the pass and, unless it is a sum of streams, the input [B,T,C] are
        // saved; else only the activations.
        Tensor input;
        TrainingPass pass;
        std::optional<Activations> activations;
    };
    BlockKind kind;
    StreamMix mix;
    std::optional<NormLayer> norm_1;  ///< of attention's input; a kind of block may lack any of its norms
    MultiHeadAttention attn;
    std::optional<NormLayer> norm_post_1;  ///< of attention's output
    std::optional<NormLayer> norm_2;       ///< of the MLP's input
    Mlp mlp;
    std::optional<NormLayer> norm_post_2;  ///< of the MLP's output
    Dropout dropout;
    Recompute recompute;

    /// `layer` is the block's number in the model, see MultiHeadAttention.
    TransformerBlock(ParameterStore& parameters, const std::string& name, const ModelConfig& config,
                     std::int64_t layer = 0, const TrainingOptions& training = {});

    /// Returns the residual stream and the MLP's output, which the next norm adds, or their sum. Only a
    /// training pass saves what backward needs.
    Residual forward(const Context& ctx, Residual stream, const Pass& pass, Saved& saved,
                     const Tensor& x0 = {}) const;
    /// Returns dx in dy's memory, because each branch only adds to the residual stream's gradient. If norms
    /// have computed dx's column sums, these are attached; they are the gradient of the last bias in the
    /// branch below. `d_x0`: see StreamMix.
    SummedGradient backward(const Context& ctx, const SummedGradient& dy, const Saved& saved,
                            const BackwardHooks& hooks, Tensor& d_x0) const;
    SummedGradient backward(const Context& ctx, const SummedGradient& dy, const Saved& saved,
                            const BackwardHooks& hooks = {}) const {
        Tensor none;
        return backward(ctx, dy, saved, hooks, none);
    }

  private:
    Residual forward_attention(const Context& ctx, Residual& stream, const Pass& pass,
                               Activations& saved) const;
    Normed mlp_input(const Context& ctx, Residual& stream, Residual& middle, Activations& saved) const;
    void drop_recomputable(Activations& kept) const;
    Activations recompute_activations(const Context& ctx, const Saved& inputs) const;
    Tensor backward_mlp(const Context& ctx, const SummedGradient& dy, Activations& kept,
                        const BackwardHooks& hooks) const;
    Tensor backward_attention(const Context& ctx, const SummedGradient& dy, Activations& kept,
                              const BackwardHooks& hooks) const;
    SummedGradient backward_layers(const Context& ctx, const SummedGradient& dy, Activations& kept,
                                   const BackwardHooks& hooks) const;
};

}  // namespace gradtile
