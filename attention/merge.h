#pragma once
/// Attention over keys in parts: the results of calls with disjoint keys, merged into those of one call.
/// Sources: Milakov & Gimelshein 2018 (eq. 4); Dao et al. 2022 (FlashAttention, algorithm 1, line 12).
#include <gradtile/core/tensor.h>

namespace gradtile::attention {

/// The results of attention with some of the keys, for every query.
struct PartialResult {
    /// [B, Sq, Hq, Dv], or [rows, Hq, Dv] of packed sequences; float64, float32, bfloat16 or float16
    Tensor o;
    Tensor lse;  ///< [B, Hq, Sq], or [Hq, rows]; float32 (float64 for float64)
};

/// Computes the results of attention with the keys of both parts:
///
///     lse = ln(exp(a.lse) + exp(b.lse))      o = exp(a.lse - lse) a.o + exp(b.lse - lse) b.o
///
/// A part whose LSE is -inf has no key for that row, and its O is not read; if both are, O is 0 and LSE is
/// -inf. Sums are in float32 (float64 for float64), so that O has the error of rounding the parts' O and its
/// own. A sink must be in one part only. Strides may be any. `into` may be the same views as a or b. Throws
/// Error on shapes and dtypes that differ, and on other memory that `into` shares with a part, or if elements
/// of `into` share memory.
///
/// backward() takes the merged o and lse as Saved, without a remainder, and computes the gradients of all
/// keys, or of one part's.
void merge(const Context& ctx, const PartialResult& into, const PartialResult& a, const PartialResult& b);
PartialResult merge(const Context& ctx, const PartialResult& a, const PartialResult& b);

}  // namespace gradtile::attention
