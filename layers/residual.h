#pragma once
/// The residual stream between the end of a branch and the next norm.
#include <gradtile/layers/dropout.h>

namespace gradtile {

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
