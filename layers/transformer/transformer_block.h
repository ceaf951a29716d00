#pragma once
/// One pre-norm transformer block.
#include <optional>
#include <string>

#include <gradtile/layers/dropout.h>
#include <gradtile/layers/transformer/configured_norm.h>
#include <gradtile/layers/transformer/mlp.h>
#include <gradtile/layers/transformer/multi_head_attention.h>

namespace gradtile {

/// x = x + dropout(attn(norm_1(x)));  x = x + dropout(mlp(norm_2(x)));  x [B,T,C].
///
/// The values that forward saves, in units of x, for GPT-2's shapes (without LSE and statistics):
///   Recompute::none         16: x, norm_1's output, qkv 3, o, norm_2's input and output, MLP 4 + 4
///   Recompute::activations  10: all except the norm outputs and the activation output. Backward
///                               recomputes each in one pass over memory, just before it is needed
///   Recompute::block         1: x. Backward first repeats the forward pass with the same dropout masks,
///                               without the MLP's last product
///
/// Parameters of block name: name.ln_1, name.attn, name.ln_2, name.mlp (Norm::rms: norm_1, norm_2).
struct TransformerBlock {
    /// What the block's layers save.
    struct Activations {
        ConfiguredNorm::Saved norm_1;
        MultiHeadAttention::Saved attn;
        Dropout::Saved attn_dropout;
        ConfiguredNorm::Saved norm_2;
        Mlp::Saved mlp;
        Dropout::Saved mlp_dropout;
    };
    struct Saved {
        // With Recompute::block, only the input [B,T,C] and the pass are saved; else only the activations.
        Tensor input;
        TrainingPass pass;
        std::optional<Activations> activations;
    };
    ConfiguredNorm norm_1;
    MultiHeadAttention attn;
    ConfiguredNorm norm_2;
    Mlp mlp;
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
    Residual forward_layers(const Context& ctx, Residual& stream, const Pass& pass, Activations& saved) const;
    void drop_recomputable(Activations& kept) const;
    Activations recompute_activations(const Context& ctx, const Saved& inputs) const;
};

}  // namespace gradtile
