#pragma once
/// The causal self-attention layer (Vaswani et al. 2017, section 3.2.2): the attention operator and its
/// projections.
#include <optional>
#include <string>

#include <gradtile/attention/attention.h>
#include <gradtile/layers/alibi.h>
#include <gradtile/layers/documents.h>
#include <gradtile/layers/head_transform.h>
#include <gradtile/layers/linear.h>
#include <gradtile/layers/pass_hooks.h>
#include <gradtile/layers/rms_norm.h>
#include <gradtile/layers/rope.h>
#include <gradtile/layers/transformer/key_value_cache.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

/// y = proj(attention(q, k, v)) with [q | k | v] = qkv(x); x and y [B,T,C].
///
/// One matrix product computes all heads: row (b, t) of its result holds Hq query heads, then Hkv key heads,
/// then Hkv value heads, with D = C / Hq elements each (Hkv < Hq: grouped queries). q, k and v are strided
/// views [B,T,H,D] into this result, and their gradients are views in the same way, so nothing is copied.
/// With config.qk_norm, each query and key head is first RMS-normalised over D, and the normalised heads are
/// written to a new tensor. With Positions::rope, queries and keys are then rotated, in the same pass over
/// memory; without a norm, in place. The config's window, softcap, sinks, dropout and Positions::alibi become
/// attention operator options.
///
/// Parameters: name.qkv, name.proj (weight, bias), name.q_norm.weight and name.k_norm.weight [D], name.sinks
/// [Hq] (zeros at first).
struct MultiHeadAttention {
    struct Saved {
        Linear::Saved qkv;  // x [B,T,C]
        // With qk_norm: the query and key heads before the norm [B,T,Hq+Hkv,D], and their 1 / norm.
        Tensor projected, rstd;
        // q, k, v, o, lse; nothing with T x T elements. With qk_norm, q and k may be undefined: backward then
        // recomputes them from `projected`.
        attention::Saved attention;
        attention::Options options;  // the forward call's options
        Linear::Saved proj;          // holds o as [B,T,C]
        Documents documents;
    };
    std::int64_t heads, kv_heads, head_dim;
    attention::Options options;  // without the tensors and the dropout key, which options_of_pass() adds
    Linear qkv, proj;
    std::optional<RMSNorm> q_norm, k_norm;
    std::optional<Rope> rope;
    std::optional<AlibiSlopes> alibi;
    Parameter sinks;

    /// `layer` is the layer's number in the model, which determines its window.
    MultiHeadAttention(ParameterStore& parameters, const std::string& name, const ModelConfig& config,
                       std::int64_t layer = 0, const TrainingOptions& training = {});

    /// `key` selects the probabilities that dropout drops; the default key drops none. With `documents`,
    /// attention and positions are those of packed documents; q, k, v and o are then [B T,H,D].
    Tensor forward(const Context& ctx, const Tensor& x /*[B,T,C]*/, Saved& saved, const DropoutKey& key = {},
                   const Documents& documents = {}) const;
    /// The attention options for a pass with this dropout key.
    attention::Options options_of_pass(const Context& ctx, const DropoutKey& key) const;
    /// Computes y for the tokens at positions start .. start+T-1, without dropout. `cache` holds the keys and
    /// values for the tokens before `start`; the function appends those for the new tokens.
    Tensor forward_with_cache(const Context& ctx, const Tensor& x /*[B,T,C]*/, std::int64_t start,
                              const KeyValueCache::Layer& cache) const;
    /// Computes y [1,N,C] for the tokens in packed texts like the function above, with one attention call per
    /// run of texts in neighbouring slots that have equal start and equal length.
    Tensor forward_with_cache(const Context& ctx, const Tensor& x /*[1,N,C]*/, const PackedTexts& pass,
                              const KeyValueCache::Layer& cache) const;
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
    Tensor heads_of(const Tensor& packed, std::int64_t first, std::int64_t count) const;
    Rope::Angles angles_of(const Context& ctx, const Documents& documents, std::int64_t length,
                           DType dtype) const;
    HeadTransform transform_of(const Rope::Angles& angles) const;
    QueriesAndKeys transformed(const Context& ctx, const Tensor& projected, const Rope::Angles& angles,
                               Tensor& rstd) const;
    attention::Saved operands_of(const Context& ctx, const Saved& saved) const;
};

}  // namespace gradtile
