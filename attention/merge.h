#pragma once
/// Attention over keys in parts: merges results from calls with disjoint keys into one call's results.
/// Sources: Milakov & Gimelshein 2018 (eq. 4); Dao et al. 2022 (FlashAttention, algorithm 1, line 12).
#include <gradtile/core/tensor.h>

namespace gradtile::attention {

/// Attention results over some of the keys, for every query.
struct PartialResult {
    /// [B, Sq, Hq, Dv], or [rows, Hq, Dv] for packed sequences; float64, float32, bfloat16 or float16
    Tensor o;
    Tensor lse;  ///< [B, Hq, Sq], or [Hq, rows]; float32 (float64 for float64)
};

/// Computes the attention results over both parts' keys:
///
///     lse = ln(exp(a.lse) + exp(b.lse))      o = exp(a.lse - lse) a.o + exp(b.lse - lse) b.o
///
/// A part whose LSE is -inf has no key for that row, and its O is not read; if both are, O is 0 and LSE is
/// -inf. Sums are in float32 (float64 for float64), so that O has only the parts' rounding errors and its
/// own. A sink must be in one part only. Strides may be any. `into` may be the same views as a or b. Throws
/// Error on shapes and dtypes that differ, and on other memory that `into` shares with a part, or if `into`
/// has elements that share memory.
///
/// backward() takes the merged o and lse as Saved, without a remainder, and computes gradients for all keys,
/// or for one part's keys.
void merge(const Context& ctx, const PartialResult& into, const PartialResult& a, const PartialResult& b);
PartialResult merge(const Context& ctx, const PartialResult& a, const PartialResult& b);

}  // namespace gradtile::attention
