#pragma once
/// Dropout (Srivastava et al. 2014), scaled in training so that evaluation needs no scaling, and the residual
/// sum at the end of a transformer branch.
///
/// The mask is never stored, because it is a pure function of an element's place in the training run:
/// Philox4x32-10 with the counter {column / 8, token, 0, sample in the global batch} gives 128 bits for 8
/// columns. Column c uses 16 of them, u = (words[c % 8 / 2] >> 16 * (c % 2)) & 0xffff. An element is kept if
/// u >= round(65536 p), and is then scaled by 65536 / (65536 - round(65536 p)).
#include <gradtile/core/dropout_key.h>
#include <gradtile/layers/column_sums.h>

namespace gradtile {

/// Dropout on x [B,..,C] with any floating dtype: axis 0 counts samples, the axes in between count tokens,
/// and the last axis counts columns. A rank-2 x is one sample. Rows are contiguous.
struct Dropout {
    struct Saved {
        DropoutKey key{.first_sample = -1};  ///< first_sample -1: no forward pass
    };

    /// Returns x * mask * scale, or x itself (not a copy) when nothing is dropped.
    Tensor forward(const Context& ctx, const Tensor& x, const DropoutKey& key, Saved& saved) const;
    /// Returns dy * mask * scale, or dy itself, with its column sums, when nothing was dropped.
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const;
    SummedGradient backward(const Context& ctx, const SummedGradient& dy, const Saved& saved) const;
    /// Computes branch = x + branch * mask * scale in one pass and returns branch. A residual branch ends
    /// with this sum; the branch's own output is not needed again. The gradients are dx = dy, d_branch =
    /// backward(dy).
    Tensor add_residual(const Context& ctx, const Tensor& x, const Tensor& branch, const DropoutKey& key,
                        Saved& saved) const;

    /// Whether a pass with this key drops anything.
    bool drops(const DropoutKey& key) const { return key.training && p > 0.0; }

    double p = 0.0;
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
