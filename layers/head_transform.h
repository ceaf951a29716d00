#pragma once
/// Transforms a packed projection's queries and keys before attention, in one pass over memory: RMSNorm over
/// each head's columns (QK-norm; Henry et al. 2020, with the norm from norm.h), and then rotary position
/// embedding (rope.h). Either may be absent.
#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/rope.h>

namespace gradtile {

/// How x [B,T,H,D] is transformed. The first `queries` heads are queries, the others keys.
struct HeadTransform {
    std::int64_t queries = 0;
    /// [D], in x's dtype: the query norm and key norm weights. Both are undefined if there is no norm.
    Tensor q_weight = {}, k_weight = {};
    double epsilon = 0.0;
    Rope::Angles angles = {};  ///< for T tokens, [T, D/2]; undefined if heads are not rotated

    bool has_norm() const { return q_weight.defined(); }
    bool rotates() const { return angles.cosines.defined(); }
};

/// Weight gradients, [D].
struct HeadWeightGradients {
    GradientTarget q = {}, k = {};
};

/// Computes y = rotate(norm(x)) for x and y [B,T,H,D]; the last axis is contiguous, others may be strided.
/// Without a norm, y is x; with a norm, y shares no memory with x. With a norm, backward needs x, and rstd
/// [B,T,H] (float32; float64 for float64 x), which this function writes; without one, rstd is undefined.
/// Values are rounded once, at the end.
void transform_heads(const Context& ctx, const Tensor& y, const Tensor& rstd, const Tensor& x,
                     const HeadTransform& transform);
/// Replaces the gradient with respect to y, in `gradient` [B,T,H,D], by the gradient with respect to x. With
/// a norm, also writes the weight gradients; x and rstd are those from the forward pass.
void differentiate_heads(const Context& ctx, const Tensor& gradient, const Tensor& rstd, const Tensor& x,
                         const HeadTransform& transform, const HeadWeightGradients& weights = {});

}  // namespace gradtile
