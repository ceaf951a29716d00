#pragma once
/// One transformer block.
#include <optional>
#include <string>

#include <gradtile/layers/dropout.h>
#include <gradtile/layers/transformer/configured_norm.h>
#include <gradtile/layers/transformer/mlp.h>
#include <gradtile/layers/transformer/multi_head_attention.h>

namespace gradtile {

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
/// A norm of a branch's output also saves that output at the first two levels.
///
/// Parameters of block name: name.ln_1, name.attn, name.ln_post_1, name.ln_2, name.mlp, name.ln_post_2,
/// without the norms that the kind of block does not have (Norm::rms: norm_1, norm_post_1 and so on).
struct TransformerBlock {
    /// What the block's layers save.
    struct Activations {
        ConfiguredNorm::Saved norm_1;
        MultiHeadAttention::Saved attn;
        ConfiguredNorm::Saved norm_post_1;
        Dropout::Saved attn_dropout;
        ConfiguredNorm::Saved norm_2;
        Mlp::Saved mlp;
        ConfiguredNorm::Saved norm_post_2;
        Dropout::Saved mlp_dropout;
    };
    struct Saved {
        // With Recompute::block, only the input [B,T,C] and the pass are saved; else only the activations.
        Tensor input;
        TrainingPass pass;
        std::optional<Activations> activations;
    };
    BlockKind kind;
    ConfiguredNorm norm_1;  ///< of attention's input; a kind of block may lack any of its norms
    MultiHeadAttention attn;
    ConfiguredNorm norm_post_1;  ///< of attention's output
    ConfiguredNorm norm_2;       ///< of the MLP's input
    Mlp mlp;
    ConfiguredNorm norm_post_2;  ///< of the MLP's output
    Dropout dropout;
    Recompute recompute;
    Parameter last_parameter;  ///< the block's last parameter in the store's order

    /// `layer` is the block's number in the model, see MultiHeadAttention.
    TransformerBlock(ParameterStore& parameters, const std::string& name, const ModelConfig& config,
                     std::int64_t layer = 0, const TrainingOptions& training = {});

    /// Returns the residual stream and the MLP's output, which the next norm adds, or their sum. Only a
    /// training pass saves what backward needs.
    Residual forward(const Context& ctx, Residual stream, const Pass& pass, Saved& saved) const;
    /// Returns dx in dy's memory, because each branch only adds to the residual stream's gradient. If norms
    /// have computed dx's column sums, these are attached; they are the gradient of the last bias in the
    /// branch below.
    SummedGradient backward(const Context& ctx, const SummedGradient& dy, const Saved& saved,
                            const BackwardHooks& hooks = {}) const;

  private:
    Residual forward_attention(const Context& ctx, Residual& stream, const Pass& pass,
                               Activations& saved) const;
    Normed mlp_input(const Context& ctx, Residual& stream, Residual& middle, Activations& saved) const;
    Residual forward_layers(const Context& ctx, Residual& stream, const Pass& pass, Activations& saved) const;
    void drop_recomputable(Activations& kept) const;
    Activations recompute_activations(const Context& ctx, const Saved& inputs) const;
    Tensor backward_mlp(const Context& ctx, const SummedGradient& dy, Activations& kept,
                        const BackwardHooks& hooks) const;
    Tensor backward_attention(const Context& ctx, const SummedGradient& dy, Activations& kept,
                              const BackwardHooks& hooks) const;
};

}  // namespace gradtile
