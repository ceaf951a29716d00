#pragma once
/// The online softmax of a warp's rows (docs/numerics.md), in base 2. A lane has two states per row tile m:
/// state 2 m belongs to row lane/4, state 2 m + 1 to row lane/4 + 8.
#include <cfloat>

#include <gradtile/attention/cuda/device/shared_tile.cuh>

namespace gradtile::attention::cuda::device {

/// 2^x with a relative error of 2^-22; results below 2^-126 are 0.
__device__ __forceinline__ float exp2_fast(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

/// Reductions over the four lanes that share a row of an accumulator.
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

inline constexpr float ln_2 = 0.693147180559945309f, log2_e = 1.44269504088896341f;

/// The textbook form of the online softmax: P is relative to the running maximum, and each update returns the
/// factor for the previous sums. Kernels that add P V to O outside the tensor cores use it, because this
/// addition applies the factor at no cost.
template <int m_tiles>
class OnlineSoftmax {
  public:
    __device__ __forceinline__ OnlineSoftmax() {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            maximum_[i] = -INFINITY;
            sum_[i] = 0;
        }
    }

    /// Sets the state of row i, of which `sum_of_lane` is this lane's part of the sum.
    __device__ __forceinline__ void set(int i, float maximum, float sum_of_lane) {
        maximum_[i] = maximum;
        sum_[i] = sum_of_lane;
    }
    /// The running maximum of row i, in base 2.
    __device__ __forceinline__ float maximum(int i) const {
        return maximum_[i];
    }

    /// Replaces S * log2(e) by P relative to the new maximum. An unchanged maximum gives factor 1.
    template <int n_tiles>
    __device__ __forceinline__ void update(FragmentC (&s)[m_tiles][n_tiles], float (&factor)[2 * m_tiles]) {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            FragmentC(&row)[n_tiles] = s[i / 2];
            const int e = i % 2 * 2;
            float largest = -INFINITY;
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) largest = fmaxf(largest, fmaxf(row[n][e], row[n][e + 1]));
            const float next = fmaxf(maximum_[i], row_max(largest));
            // If no key is visible yet, P = 2^-inf = 0.
            const float reference = next == -INFINITY ? 0.0f : next;
            factor[i] = exp2_fast(maximum_[i] - reference);
            maximum_[i] = next;
            float of_lane = 0;
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) {
                row[n][e] = exp2_fast(row[n][e] - reference);
                row[n][e + 1] = exp2_fast(row[n][e + 1] - reference);
                of_lane += row[n][e] + row[n][e + 1];
            }
            sum_[i] = fmaf(sum_[i], factor[i], of_lane);
        }
    }

    /// Adds a sink (a logit without a key), in base 2, to every row. Returns the factor for the previous
    /// sums.
    __device__ __forceinline__ void add_sink(float sink_log2, float (&factor)[2 * m_tiles]) {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            const float next = fmaxf(maximum_[i], sink_log2);
            const float reference = next == -INFINITY ? 0.0f : next;
            factor[i] = exp2_fast(maximum_[i] - reference);
            maximum_[i] = next;
            // Four lanes share a row. Only the first of them adds the sink.
            sum_[i] =
                fmaf(sum_[i], factor[i], lane_index() % 4 == 0 ? exp2_fast(sink_log2 - reference) : 0.0f);
        }
    }

    /// The sum of P over row i: 0 for a row without visible keys, at least 1 for others.
    __device__ __forceinline__ float sum(int i) const {
        return row_sum(sum_[i]);
    }
    /// The natural log-sum-exp of row i; `sum` must be sum(i).
    __device__ __forceinline__ float lse(int i, float sum) const {
        return sum == 0 ? -INFINITY : fmaf(maximum_[i], ln_2, logf(sum));
    }

  private:
    float maximum_[2 * m_tiles];
    float sum_[2 * m_tiles];  ///< the sum of P over this lane's columns; row_sum() adds the lanes
};

/// An online softmax that rarely rescales. Kernels that sum P V in the accumulators of the tensor cores use
/// it, because there each rescaling multiplies all of O.
template <int m_tiles>
class LazyOnlineSoftmax {
  public:
    /// scale_log2 = log2(e) * (the scale that is not yet applied to S); it must be positive.
    __device__ explicit LazyOnlineSoftmax(float scale_log2) : scale_log2_(scale_log2) {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            reference_[i] = -INFINITY;
            sum_[i] = 0;
        }
    }

    /// Replaces S by P relative to the row's reference. If the reference changes, rescales o, the sum of the
    /// previous blocks.
    template <int n_tiles, int o_tiles>
    __device__ __forceinline__ void update(FragmentC (&s)[m_tiles][n_tiles],
                                           FragmentC (&o)[m_tiles][o_tiles]) {
        if (raise_reference(s)) rescale(o);
        exponentiate(s);
    }

    // The steps of update(), for kernels that compute o at the same time.

    /// Raises each row's reference to the row's maximum of S if that is necessary. Returns whether the caller
    /// must then rescale o; the answer is the same in all lanes.
    ///
    /// The reference follows the running maximum only if P would otherwise exceed 2^8. With random scores
    /// this happens only in the first block, so most blocks do not rescale o. Values of P up to 2^8 cost no
    /// accuracy, because floating-point roundings are relative.
    template <int n_tiles>
    __device__ __forceinline__ bool raise_reference(const FragmentC (&s)[m_tiles][n_tiles]) {
        float maximum[2 * m_tiles];
        bool moves = false;
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            float largest = s[i / 2][0][i % 2 * 2];
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) {
                largest = fmaxf(largest, s[i / 2][n][i % 2 * 2]);
                largest = fmaxf(largest, s[i / 2][n][i % 2 * 2 + 1]);
            }
            maximum[i] = row_max(largest);
            // -inf - -inf is NaN, and every comparison with NaN is false. So a row without visible keys keeps
            // its reference.
            moves |= (maximum[i] - reference_[i]) * scale_log2_ > 8.0f;
        }
        const bool any_moves = __any_sync(~0u, moves);
        if (any_moves) move_reference(maximum);
        return any_moves;
    }
    /// Replaces S by P relative to the references.
    template <int n_tiles>
    __device__ __forceinline__ void exponentiate(FragmentC (&s)[m_tiles][n_tiles]) {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            // If the reference is near the lowest float32, its product with the scale is -inf. The lowest
            // finite number replaces -inf, and P becomes 0.
            const float shift =
                reference_[i] == -INFINITY ? 0.0f : fmaxf(reference_[i] * scale_log2_, -FLT_MAX);
            float sum = 0;
#pragma unroll
            for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                for (int e = i % 2 * 2; e < i % 2 * 2 + 2; ++e) {
                    s[i / 2][n][e] = exp2_fast(fmaf(s[i / 2][n][e], scale_log2_, -shift));
                    sum += s[i / 2][n][e];
                }
            sum_[i] += sum;
        }
    }
    /// Multiplies o by the factors of the latest change of the references.
    template <int o_tiles>
    __device__ __forceinline__ void rescale(FragmentC (&o)[m_tiles][o_tiles]) const {
        scale_rows(o, factor_);
    }

    /// Adds a sink (a logit without a key), in the units of S, to every row. The caller must call this
    /// function after the last update(), so that a large sink does not change the reference while P is
    /// summed.
    template <int o_tiles>
    __device__ __forceinline__ void add_sink(float sink, FragmentC (&o)[m_tiles][o_tiles]) {
        if (sink == -INFINITY) return;
        float all[2 * m_tiles];
#pragma unroll
        for (float& x : all) x = sink;
        move_reference(all);
        rescale(o);
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i)
            if (lane_index() % 4 == 0) sum_[i] += exp2_fast((sink - reference_[i]) * scale_log2_);
    }

    /// Computes o = factor sum P V / sum P (0 for rows without visible keys) and lse, the natural log-sum-exp
    /// of the rows.
    template <int o_tiles>
    __device__ __forceinline__ void finish(FragmentC (&o)[m_tiles][o_tiles], float (&lse)[2 * m_tiles],
                                           float factor = 1.0f) {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            const float sum = row_sum(sum_[i]);
            const float inverse = sum == 0 ? 0.0f : __fdividef(factor, sum);
            lse[i] = sum == 0 ? -INFINITY : fmaf(reference_[i] * scale_log2_, ln_2, logf(sum));
#pragma unroll
            for (int n = 0; n < o_tiles; ++n) {
                o[i / 2][n][i % 2 * 2] *= inverse;
                o[i / 2][n][i % 2 * 2 + 1] *= inverse;
            }
        }
    }

  private:
    __device__ __forceinline__ void move_reference(const float (&maximum)[2 * m_tiles]) {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            const float next = fmaxf(reference_[i], maximum[i]);
            factor_[i] = next == -INFINITY ? 1.0f : exp2_fast((reference_[i] - next) * scale_log2_);
            reference_[i] = next;
            sum_[i] *= factor_[i];
        }
    }

    float scale_log2_;
    float reference_[2 * m_tiles];  ///< the reference in units of S: P = 1 where S equals it
    float sum_[2 * m_tiles];        ///< the sum of P over this lane's columns; row_sum() adds the lanes
    float factor_[2 * m_tiles];     ///< the factors of the latest change of the references
};

}  // namespace gradtile::attention::cuda::device
