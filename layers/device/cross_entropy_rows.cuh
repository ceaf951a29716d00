#pragma once
/// Softmax cross-entropy for a logit row: what the kernels for different row widths share. The largest logit
/// and the sum of exponentials are computed in one pass (online softmax, Milakov and Gimelshein 2018).
#include <limits>

#include <gradtile/core/context.h>
#include <gradtile/core/dtype.h>
#include <gradtile/layers/internal/softcap_formulas.h>
#include <gradtile/layers/vocabulary.h>
#include <gradtile/core/cuda/device/reduce.cuh>
#include <gradtile/layers/device/activation_math.cuh>

namespace gradtile::cuda {

struct SoftcapMath {
    /// The absolute error of float32 is a few 2^-24, and a capped logit is an exponent.
    template <class S>
    __device__ static S tanh(S x) {
        return 1 - 2 * device::reciprocal(1 + device::exponential(2 * x));
    }
    __device__ static float reciprocal_sqrt(float x) {
        float result;
        asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
        return result;
    }
    __device__ static double reciprocal_sqrt(double x) { return rsqrt(x); }
};

/// L is the logits' type; sums are in S = Accumulator<L>. Cap is one of softcap_formulas.h.
template <class L, class Cap>
struct CrossEntropy {
    Cap cap;
    double* losses;
    L* logits;
    std::int64_t stride, rows;
    int width;
    const std::int32_t* targets;
    const double* count;
    double scale;
    bool gradients;  // overwrite the logits with their gradients
};

template <class L, class Cap>
__device__ __forceinline__ bool is_valid_target(const CrossEntropy<L, Cap>& c, int target) {
    return target >= 0 && target < c.width;
}

/// The factor in all gradients: scale / count, and 0 if all targets are ignored.
template <class L, class Cap, class S = Accumulator<L>>
__device__ __forceinline__ S gradient_factor(const CrossEntropy<L, Cap>& c) {
    return *c.count > 0 ? static_cast<S>(c.scale / *c.count) : S(0);
}

/// The largest logit so far, and the sum of e^(logit - largest).
template <class S>
struct Softmax {
    S largest = -std::numeric_limits<S>::infinity();
    S sum = 0;

    /// The number to subtract from logits. If all logits so far are -infinity, the number is 0, because
    /// -infinity minus -infinity is NaN.
    __device__ S base() const { return largest == -std::numeric_limits<S>::infinity() ? S(0) : largest; }

    template <int n>
    __device__ __forceinline__ void add(const S (&logits)[n]) {
        const S before = largest;
#pragma unroll
        for (int i = 0; i < n; ++i) largest = largest < logits[i] ? logits[i] : largest;
        const S from = base();
        sum *= device::exponential(before - from);
#pragma unroll
        for (int i = 0; i < n; ++i) sum += device::exponential(logits[i] - from);
    }
    /// The sum relative to a base that is at least as large. A sum over -infinity alone is 0 or NaN.
    __device__ __forceinline__ S sum_relative_to(S other_base) const {
        return largest == base() ? sum * device::exponential(largest - other_base) : sum;
    }
    __device__ __forceinline__ void merge(const Softmax& other) {
        const Softmax before = *this;
        largest = largest < other.largest ? other.largest : largest;
        sum = before.sum_relative_to(base()) + other.sum_relative_to(base());
    }
};

struct Larger {
    template <class S>
    __device__ S operator()(S a, S b) const {
        return a < b ? b : a;
    }
};

template <int team, class S>
__device__ Softmax<S> combined(const Softmax<S>& own) {
    Softmax<S> all;
    all.largest = device::reduce_team<team>(own.largest, Larger{});
    all.sum = device::reduce_team<team>(own.sum_relative_to(all.base()), device::Sum{});
    return all;
}

/// The gradient of a row's loss with respect to a logit. For the target's logit, the caller also subtracts
/// target_term().
template <class S, class Cap>
struct RowGradient {
    S largest, share, factor;
    Cap cap;

    __device__ __forceinline__ S operator()(S logit) const {
        const CappedLogit<S> capped = cap(logit);
        return device::exponential(capped.value - largest) * share * capped.slope;
    }
    __device__ __forceinline__ S target_term(S logit) const { return factor * cap(logit).slope; }
};

/// -log of the target's probability, from its capped logit.
template <class S>
__device__ __forceinline__ double loss_of_row(const Softmax<S>& all, S target_logit) {
    return log(static_cast<double>(all.sum)) +
           (static_cast<double>(all.largest) - static_cast<double>(target_logit));
}

/// Launches the kernel for wide rows that thread block clusters hold in shared memory, so that every logit is
/// read once. Returns false, and launches nothing, if gradients are not requested, if the device has no
/// clusters or too little shared memory, if a row is too short to gain or too long for a cluster, or if the
/// rows are not aligned to 16 bytes. L is float, bfloat16 or float16.
template <class L, class Cap>
bool cross_entropy_in_clusters(const Context& ctx, const CrossEntropy<L, Cap>& rows);

}  // namespace gradtile::cuda
