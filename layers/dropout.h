#pragma once
/// Dropout (Srivastava et al. 2014), scaled so that evaluation needs no change, and the residual sum that
/// ends a transformer branch.
///
/// The mask is a pure function of where an element stands in training, never stored: Philox4x32-10 with the
/// counter {column / 8, token, 0, sample in the global batch} gives 128 bits for 8 columns, column c taking
/// 16 of them: u = (words[c % 8 / 2] >> 16 * (c % 2)) & 0xffff. It is kept when u >= round(65536 p) and
/// scaled by 65536 / (65536 - round(65536 p)).
#include <gradtile/core/dropout_key.h>
#include <gradtile/layers/column_sums.h>

namespace gradtile {

/// x [B,..,C], any float dtype: axis 0 counts samples, the axes between tokens, the last columns. A rank-2 x
/// is one sample. Rows are contiguous.
struct Dropout {
    struct Saved {
        DropoutKey key;
    };

    /// x * mask * scale; x itself, not a copy, when nothing is dropped.
    Tensor forward(const Context& ctx, const Tensor& x, const DropoutKey& key, Saved& saved) const;
    /// dy * mask * scale; dy itself, with its column sums, when nothing was dropped.
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const;
    SummedGradient backward(const Context& ctx, const SummedGradient& dy, const Saved& saved) const;
    /// branch = x + branch * mask * scale in one pass, and returns it: the end of a residual branch, whose
    /// own output nobody needs again. Its backward is dx = dy, d_branch = backward(dy).
    Tensor add_residual(const Context& ctx, const Tensor& x, const Tensor& branch, const DropoutKey& key,
                        Saved& saved) const;

    /// Whether a pass with this key drops anything.
    bool drops(const DropoutKey& key) const { return key.training && p > 0.0; }

    double p = 0.0;
};

}  // namespace gradtile
