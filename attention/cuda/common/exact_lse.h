#pragma once
/// INTERNAL. Large scores, and results that are not finite.
#include <cmath>

#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/core/host_device.h>
#include <gradtile/core/internal/data_or_null.h>

namespace gradtile::attention::cuda {

/// A log-sum-exp as a float32, and the remainder that its rounding lost.
struct ExactLse {
    float lse, remainder;

    /// Returns reference + ln(sum).
    GRADTILE_HOST_DEVICE static ExactLse of(float reference, float sum) {
        if (sum == 0) return {-INFINITY, 0};
        const float log_sum = logf(sum), lse = reference + log_sum;
        return {lse, reference - lse + log_sum};
    }
};

/// A call's flags (ResolvedOptions::flags) for kernels; null without biases and row ranges.
inline int* non_finite_flag(const ResolvedOptions& options) {
    return data_or_null<std::int32_t>(options.flags);
}
/// Backward kernels compute P in the exact form if this flag is set. Only biases make scores large.
inline int* large_lse_flag(const ResolvedOptions& options) {
    return options.flags.defined() ? options.flags.data<std::int32_t>() + 1 : nullptr;
}
/// Enqueues a kernel that sets the non-finite flag if an element in x [B, S, H, D] is not finite. Does
/// nothing without biases and row ranges.
void find_non_finite(const Context& ctx, const ResolvedOptions& options, const Tensor& x);
/// The same for a backward pass's gradients. In a hidden pair, non-finite K, V or dO reaches dQ, and
/// non-finite Q reaches dK.
inline void find_non_finite_gradients(const Context& ctx, const ResolvedOptions& options,
                                      const Gradients& into) {
    find_non_finite(ctx, options, into.q);
    find_non_finite(ctx, options, into.k);
}

}  // namespace gradtile::attention::cuda
