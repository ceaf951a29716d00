#pragma once
/// The norm of the whole gradient, and clipping by it (Pascanu et al. 2013) without a sweep of its own: the
/// optimizer applies the factor.
#include <functional>
#include <string>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

/// sqrt of the sum of squares of a contiguous floating-point tensor; [1] float64. Squares and sums are
/// float64 in fixed blocks, so nothing overflows that x itself could hold and the result does not depend on
/// the number of threads.
/// Short of float64 elements beyond 1e154 it is finite exactly when every element is.
Tensor global_norm(const Context& ctx, const Tensor& x);

struct ClipOptions {
    double max_norm = 0.0;  ///< 0: no clipping
    Tensor loss = {};       ///< one floating-point element: must be finite too
    /// When the gradients are one part of several: makes a part's sum of squares, [1] float64, that of all
    /// parts.
    std::function<void(const Tensor& sum_of_squares)> add_other_parts = {};
};

/// Both [1] float64, on the device: nothing waits for them.
struct Clip {
    Tensor norm;   ///< before clipping
    Tensor scale;  ///< min(1, max_norm / norm); 0 when norm or loss is not finite (see UpdateOptions)
};
Clip clip_global_norm(const Context& ctx, const Tensor& gradients, const ClipOptions& options = {});

/// Name of the first parameter whose gradient holds an infinity or NaN; empty when none does. Waits for the
/// device; for the message after a refused update.
std::string first_non_finite_gradient(const Context& ctx, const ParameterStore& store);

}  // namespace gradtile
