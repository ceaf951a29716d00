#pragma once
/// The whole gradient's norm, and gradient clipping (Pascanu et al. 2013). Clipping needs no extra pass over
/// memory: the optimizer applies the factor.
#include <functional>

#include <gradtile/core/context.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// Returns [1] float64: the square root of the sum of squares over a contiguous floating-point tensor.
/// Squares and sums are float64 in fixed blocks, so values that x can hold do not overflow, and the result
/// does not depend on the thread count. The result is finite exactly when every element in x is, except for
/// float64 elements beyond 1e154.
Tensor global_norm(const Context& ctx, const Tensor& x);

struct ClipOptions {
    double max_norm = 0.0;  ///< 0: no clipping
    Tensor loss = {};       ///< one floating-point element that must be finite, too
    /// [1] float64 or undefined: not 0 if another process is lost, so that the sums may be wrong. The number
    /// is read once, after all sums, and the host may set it meanwhile. The update is then refused.
    Tensor interruption = {};
    /// Set if the gradients are one part among several. Replaces the part's sum of squares, [1] float64, by
    /// the sum over all parts.
    std::function<void(const Tensor& sum_of_squares)> add_other_parts = {};
};

/// Clipping results. Both tensors are [1] float64 on the device; the host does not wait for them.
struct Clip {
    Tensor norm;   ///< norm before clipping; NaN after an interruption
    Tensor scale;  ///< min(1, max_norm / norm); 0 when norm or loss is not finite (see UpdateOptions)
};
Clip clip_global_norm(const Context& ctx, const Tensor& gradients, const ClipOptions& options = {});

}  // namespace gradtile
