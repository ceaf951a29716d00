#pragma once
/// The residual stream between a branch's end and the norm behind it.
#include <gradtile/layers/dropout.h>

namespace gradtile {

/// x + dropout(branch), not yet added: the norm that reads it adds on its way, so that the sum is written
/// once and not read again. x and branch [B,..,C] have one shape and dtype; rows are contiguous.
struct Residual {
    Tensor x;
    Tensor branch = {};  ///< undefined: nothing is to be added
    Dropout dropout = {};
    DropoutKey key = {};

    /// Adds now: in branch's memory, or x itself.
    Tensor sum(const Context& ctx) const {
        Dropout::Saved unused;
        return branch.defined() ? dropout.add_residual(ctx, x, branch, key, unused) : x;
    }
};

}  // namespace gradtile
