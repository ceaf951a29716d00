#pragma once
/// The causal self-attention layer (Vaswani et al. 2017, section 3.2.2): the attention operator and its
/// projections.
#include <optional>
#include <string>

#include <gradtile/attention/attention.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/device_copies.h>
#include <gradtile/layers/documents.h>
#include <gradtile/layers/head_transform.h>
#include <gradtile/layers/learned_factors.h>
#include <gradtile/layers/linear.h>
#include <gradtile/layers/norm.h>
#include <gradtile/layers/pass_hooks.h>
#include <gradtile/layers/rope.h>
#include <gradtile/layers/transformer/model_config.h>
#include <gradtile/layers/transformer/pass.h>

namespace gradtile {

/// y = proj(attention(q, k, v)) with [q | k | v] = qkv(x); x and y [B,T,C].
///
/// One matrix product computes all heads: row (b, t) of its result holds Hq query heads, then Hkv key heads,
/// then Hkv value heads, with D = config.head_dim() elements each (Hkv < Hq: grouped queries). q, k and v are
/// strided views [B,T,H,D] into this result, and their gradients are views in the same way, so nothing is
/// copied. With config.qk_norm, queries and keys are first RMS-normalised, over D or over all heads of a
/// token, and written to a new tensor. With Positions::rope, queries and keys are then rotated, in the same
/// pass over memory if whole heads are; without a norm, in place. The config's window, softcap, sinks,
/// dropout and Positions::alibi become attention operator options. With config.attention_gate, the heads of
/// attention's output are gated (HeadGate) before proj; in layers with a value embedding, the values have a
/// term of their own for each token (ValueEmbedding). The gates read x. In layers with
/// config.offsets_keys(), the keys' unrotated columns are those of the token before, which is the first
/// token's own key where there is none: a query then compares itself with a key's token and with the one
/// before.
///
/// Parameters: name.qkv, name.proj (weight, bias), name.q_norm.weight and name.k_norm.weight ([D], or [Hq*D]
/// and [Hkv*D]), name.sinks [Hq] (zeros at first), name.value_embedding, name.value_gate, name.gate.
struct MultiHeadAttention {
    struct Saved {
        Linear::Saved qkv;  // x [B,T,C]
        // With qk_norm: the query and key heads before the norm [B,T,Hq+Hkv,D], and their 1 / norm. A norm
        // over all heads saves views [B,T,H*D] instead, and one number a token.
        Tensor projected, rstd;
        RMSNorm::Saved q_norm, k_norm;
        // q, k, v, o, lse; nothing with T x T elements. With qk_norm, q and k may be undefined: backward then
        // recomputes them from `projected`.
        attention::Saved attention;
        attention::Options options;  // the forward call's options
        // Holds o as [B,T,C], or the gated o. This may be undefined; backward then computes it again.
        Linear::Saved proj;
        ValueEmbedding::Saved value;
        HeadGate::Saved gate;
        TrainingPass pass;
    };
    std::int64_t layer;  // the layer's number in the model
    std::int64_t heads, kv_heads, head_dim;
    attention::Options options;  // without the tensors and the dropout key, which options_of_pass() adds
    Linear qkv, proj;
    std::optional<QkNorm> qk_norm;
    double norm_epsilon;
    std::optional<RMSNorm> q_norm, k_norm;  // unless qk_norm has no gain
    std::optional<Rope> rope;               // rotates the first rope->head_dim() columns of a head
    bool has_prefix;         // a text's first tokens in a cached pass see each other (ModelConfig::prefix)
    bool has_window_angles;  // the rope is that of layers with a window
    std::optional<DeviceCopies> alibi;
    std::vector<HeadColumns> offset_columns;  // of the keys, which have them from the token before
    Parameter sinks;
    std::optional<ValueEmbedding> value_embedding;
    std::optional<HeadGate> gate;  // of attention's output

    /// `layer` determines the window, the place in a cache, and the dropout masks.
    MultiHeadAttention(ParameterStore& parameters, const std::string& name, const ModelConfig& config,
                       std::int64_t layer = 0, const TrainingOptions& training = {});

    /// Computes y for a pass's tokens; x and y are [B,T,C], [1,N,C] or [1,R,C]. Only a training pass saves
    /// what backward needs; with packed sequences, its q, k, v and o are [B T,H,D].
    Tensor forward(const Context& ctx, const Normed& x, const Pass& pass, Saved& saved) const;
    /// Returns the stream's sum with dropout(y), see Linear::forward_onto().
    Residual forward_onto(const Context& ctx, const Residual& stream, const Normed& x, const Pass& pass,
                          Saved& saved) const;
    /// The rotation angles for rows of `length` tokens; undefined without rotations.
    Rope::Angles angles_at(const Context& ctx, const TokenPositions& positions, std::int64_t length,
                           DType dtype) const;
    /// The attention options for a pass with this dropout key.
    attention::Options options_of_pass(const Context& ctx, const DropoutKey& key) const;
    /// The sinks [heads] in float32.
    Tensor sink_values(const Context& ctx) const {
        return sinks.dtype() == DType::f32 ? sinks.value() : cast(ctx, sinks.value(), DType::f32);
    }
    /// The queries [B,T,Hq,D] and keys [B,T,Hkv,D] for attention.
    struct QueriesAndKeys {
        Tensor q, k;
    };
    /// Normalises and rotates the query and key heads in `packed` [B,T,(Hq+2Hkv)*D], if the config says so.
    /// Without a norm, changes them in place. `angles` holds the angles for its T tokens, or for all B T
    /// tokens in a row; it is ignored without rotations.
    QueriesAndKeys queries_and_keys(const Context& ctx, const Tensor& packed, const Rope::Angles& angles,
                                    Saved& saved) const;
    /// Replaces the gradient with respect to these queries and keys, [B,T,Hq+Hkv,D], by the gradient with
    /// respect to their part of `packed`, and writes the norms' gradients.
    void differentiate_queries_and_keys(const Context& ctx, const Tensor& gradient,
                                        const Rope::Angles& angles, const Saved& saved) const;
    /// Returns dx [B,T,C].
    Tensor backward(const Context& ctx, const SummedGradient& dy /*[B,T,C]*/, const Saved& saved,
                    const BackwardHooks& hooks = {}) const;

  private:
    /// The heads of a pass's tokens: q [B,T,Hq,D], k and v [B,T,Hkv,D].
    struct Heads {
        Tensor q, k, v;
    };
    Tensor attended(const Context& ctx, const Normed& x, const Pass& pass, Saved& saved) const;
    Tensor attend(const Context& ctx, const TrainingPass& pass, const Heads& heads, Saved& saved) const;
    Tensor attend(const Context& ctx, const CachedPass& pass, const Heads& heads, Saved& saved) const;
    Tensor attend(const Context& ctx, const StepPass& pass, const Heads& heads, Saved& saved) const;
    Tensor heads_of(const Tensor& packed, std::int64_t first, std::int64_t count) const;
    HeadTransform transform_of(const Rope::Angles& angles) const;
    void rotate(const Context& ctx, const Tensor& heads, const Rope::Angles& angles) const;
    QueriesAndKeys transformed(const Context& ctx, const Tensor& projected, const Rope::Angles& angles,
                               Saved& saved) const;
    attention::Saved operands_of(const Context& ctx, const Saved& saved) const;
};

}  // namespace gradtile
