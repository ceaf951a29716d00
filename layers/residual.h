#pragma once
/// The residual stream between the end of a branch and the next norm, and what that norm computes.
#include <gradtile/layers/dropout.h>

namespace gradtile {

/// A norm over the last axis: y = (x - mean) / sqrt(var + eps) * (weight_offset + weight) + bias.
struct NormParameters {
    Tensor weight;     ///< [C]
    Tensor bias = {};  ///< [C] or undefined
    double eps = 1e-5;
    bool centred = true;         ///< LayerNorm; false: RMSNorm, whose mean is 0
    double weight_offset = 0.0;  ///< added to the weight before rounding; 1 in Gemma's norms
};

/// The sum x + dropout(branch), which is not computed yet. The next norm adds the two terms while it reads
/// them, which saves one read of the sum. x and branch [B,..,C] have the same shape and dtype; rows are
/// contiguous.
struct Residual {
    Tensor x;
    Tensor branch = {};  ///< undefined: the sum is x
    Dropout dropout = {};
    DropoutKey key = {};
    /// No backward pass follows, so that layers may compute operators on the stream in one kernel, without
    /// the intermediate results that backward would need.
    bool inference = false;

    /// The stream without its branch, before another branch with this dropout.
    Residual before_branch(const Dropout& next, const DropoutKey& next_key) const {
        return {x, {}, next, next_key, inference};
    }
    /// Computes the sum in branch's memory and returns it; returns x itself if there is no branch.
    Tensor sum(const Context& ctx) const {
        Dropout::Saved unused;
        return branch.defined() ? dropout.add_residual(ctx, x, branch, key, unused) : x;
    }
};

}  // namespace gradtile
