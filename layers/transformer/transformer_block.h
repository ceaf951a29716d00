#pragma once
/// One pre-norm transformer block.
#include <optional>
#include <string>

#include <gradtile/layers/residual.h>
#include <gradtile/layers/transformer/configured_norm.h>
#include <gradtile/layers/transformer/mlp.h>
#include <gradtile/layers/transformer/multi_head_attention.h>

namespace gradtile {

/// x = x + dropout(attn(norm_1(x)));  x = x + dropout(mlp(norm_2(x)));  x [B,T,C].
///
/// What forward keeps, in units of x, for GPT-2's shapes (LSE and statistics are left out):
///   Recompute::none         16: x, norm_1's output, qkv 3, o, the middle, norm_2's output, MLP 4 + 4
///   Recompute::activations  10: without both norms' outputs and the activation's, which backward makes again
///                               when it comes to them, each in one pass over memory
///   Recompute::block         1: x. Backward runs forward again first, with the same dropout masks and
///                               without the MLP's last product
///
/// Parameters of block name: name.ln_1, name.attn, name.ln_2, name.mlp (Norm::rms: norm_1, norm_2).
struct TransformerBlock {
    /// What one pass through the block leaves for backward.
    struct Activations {
        ConfiguredNorm::Saved norm_1;
        MultiHeadAttention::Saved attn;
        Dropout::Saved attn_dropout;
        ConfiguredNorm::Saved norm_2;
        Mlp::Saved mlp;
        Dropout::Saved mlp_dropout;
    };
    struct Saved {
        Tensor input;                            // with Recompute::block: [B,T,C]
        DropoutKey dropout;                      // and the key of its masks,
        std::optional<Activations> activations;  // else these
    };
    ConfiguredNorm norm_1;
    MultiHeadAttention attn;
    ConfiguredNorm norm_2;
    Mlp mlp;
    Dropout dropout;
    Recompute recompute;
    Parameter last_parameter;  ///< in the order in which the store lays them out

    TransformerBlock(ParameterStore& parameters, const std::string& name, const ModelConfig& config);

    /// `key` names the block's dropout masks; a default one drops nothing. The MLP's branch is left for the
    /// next norm to add.
    Residual forward(const Context& ctx, Residual stream, const DropoutKey& key, Saved& saved) const;
    /// Returns dx in dy's memory: the residual stream's gradient passes through and each branch adds to it.
    /// The sums of its columns, where the norms have made them, are the gradient of a branch's last bias.
    SummedGradient backward(const Context& ctx, const SummedGradient& dy, const Saved& saved,
                            const BackwardHooks& hooks = {}) const;

  private:
    Residual forward_attention(const Context& ctx, Residual& stream, const DropoutKey& key,
                               Activations& saved) const;
    Residual forward_keeping(const Context& ctx, Residual& stream, const DropoutKey& key,
                             Activations& saved) const;
    void forget_cheap(Activations& kept) const;
    Activations recomputed(const Context& ctx, const Tensor& x, const DropoutKey& key) const;
};

}  // namespace gradtile
