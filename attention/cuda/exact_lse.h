#pragma once
/// INTERNAL. Scores of any size, and results that are not finite.
#include <cmath>

#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/core/host_device.h>

namespace gradtile::attention::cuda {

/// A log-sum-exp as a float32 and what its rounding lost.
struct ExactLse {
    float lse, remainder;

    /// Returns reference + ln(sum).
    GRADTILE_HOST_DEVICE static ExactLse of(float reference, float sum) {
        if (sum == 0) return {-INFINITY, 0};
        const float log_sum = logf(sum), lse = reference + log_sum;
        return {lse, reference - lse + log_sum};
    }
};

/// The flags of a call (ResolvedOptions::flags) for kernels; null without biases.
inline int* non_finite_flag(const ResolvedOptions& options) {
    return options.flags.defined() ? options.flags.data<std::int32_t>() : nullptr;
}
/// Kernels of the backward pass compute P in the exact form if this flag is set. Only biases make scores
/// large.
inline int* large_lse_flag(const ResolvedOptions& options) {
    return options.flags.defined() ? options.flags.data<std::int32_t>() + 1 : nullptr;
}
/// Enqueues a search for elements of x [B, S, H, D] that are not finite, which sets the flag. Does nothing
/// without biases.
void find_non_finite(const Context& ctx, const ResolvedOptions& options, const Tensor& x);
/// The same for the gradients of a backward pass: what is not finite in K, V or dO of a hidden pair reaches
/// dQ, and what is not finite in Q reaches dK.
inline void find_non_finite_gradients(const Context& ctx, const ResolvedOptions& options,
                                      const Gradients& into) {
    find_non_finite(ctx, options, into.q);
    find_non_finite(ctx, options, into.k);
}

}  // namespace gradtile::attention::cuda
