#pragma once
/// Online softmax over a warp's rows (docs/numerics.md), in base 2. A lane has two states per row tile m:
/// state 2 m belongs to row lane/4, state 2 m + 1 to row lane/4 + 8.
#include <cfloat>

#include <gradtile/attention/cuda/common/exact_lse.h>
#include <gradtile/attention/cuda/common/shared_tile.cuh>
#include <gradtile/core/cuda/device/fast_math.cuh>

namespace gradtile::attention::cuda::device {

/// Reduce over the four lanes that share an accumulator row.
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

inline constexpr float ln_2 = 0.693147180559945309f, log2_e = 1.44269504088896341f;

/// Returns whether all elements in this lane are finite.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ bool is_finite(const FragmentC (&x)[m_tiles][n_tiles]) {
    float zero[4] = {};  // four independent sums have less latency than one
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) zero[e] = fmaf(x[m][n][e], 0.0f, zero[e]);
    return (zero[0] + zero[1]) + (zero[2] + zero[3]) == 0;
}

/// If a maximum or an LSE has at least this magnitude, kernels subtract it from the scores before they
/// multiply by log2(e). The fused form multiplies first, so the product's rounding would multiply P by
/// 2^(2^-24 |log2(e) LSE|).
inline constexpr float large_lse = 4096;
__device__ __forceinline__ bool is_large(float lse) {
    return fabsf(lse) >= large_lse && fabsf(lse) < INFINITY;
}

/// Writes the LSE for row `index` in [B, Hq, Sq].
template <class Parameters>
__device__ __forceinline__ void store_lse(const Parameters& p, std::int64_t index, const ExactLse& lse) {
    p.lse[index] = lse.lse;
    if (p.lse_remainder != nullptr) p.lse_remainder[index] = lse.remainder;
}

/// Row LSEs for one head whose scores may be large.
struct RowReferences {
    const float *lse, *remainder;  ///< point to row 0; remainder may be null
    int rows;

    /// The arrays are [B, Hq, Sq]. A head has `all_rows` rows; the sequence's `sequence_rows` rows begin at
    /// `first`.
    __device__ __forceinline__ RowReferences(const float* lses, const float* remainders,
                                             std::int64_t batch_head, int all_rows, int first,
                                             int sequence_rows)
        : lse(lses + batch_head * all_rows + first),
          remainder(remainders == nullptr ? nullptr : remainders + batch_head * all_rows + first),
          rows(sequence_rows) {}
    __device__ __forceinline__ RowReferences(const float* lses, const float* remainders,
                                             std::int64_t batch_head, int all_rows)
        : RowReferences(lses, remainders, batch_head, all_rows, 0, all_rows) {}

    /// Returns the row's LSE, or +inf, which makes P = 0, if the row sees no key or does not exist.
    __device__ __forceinline__ ExactLse operator()(int row) const {
        const float value = row < rows ? lse[row] : -INFINITY;
        if (value == -INFINITY) return {INFINITY, 0};
        return {value, remainder == nullptr ? 0.0f : remainder[row]};
    }
};
/// Returns 2^exponent P for a score. The forward pass may have rounded its scores in another order, so P is
/// limited to 1.
__device__ __forceinline__ float exact_probability(float score, const ExactLse& row, float exponent = 0) {
    const float x = fmaf(score - row.lse, log2_e, fmaf(row.remainder, -log2_e, exponent));
    return power_of_two(x > exponent ? exponent : x);
}

/// The textbook online softmax: P is relative to the running maximum, and each update returns the factor for
/// the previous sums. Kernels that add P V to O outside the tensor cores use it, because this addition
/// applies the factor at no cost. Scores are in base 2, or natural: see large_lse.
template <int m_tiles, bool is_natural = false>
class OnlineSoftmax {
    static constexpr float unit = is_natural ? log2_e : 1.0f;

  public:
    __device__ __forceinline__ OnlineSoftmax() {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            maximum_[i] = -INFINITY;
            sum_[i] = 0;
        }
    }

    /// Sets row i's state; `sum_of_lane` is this lane's partial sum.
    __device__ __forceinline__ void set(int i, float maximum, float sum_of_lane) {
        maximum_[i] = maximum;
        sum_[i] = sum_of_lane;
    }
    /// Row i's running maximum, in the scores' units.
    __device__ __forceinline__ float maximum(int i) const {
        return maximum_[i];
    }

    /// Replaces the scores by P relative to the new maximum. An unchanged maximum gives factor 1.
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
            factor[i] = power_of_two((maximum_[i] - reference) * unit);
            maximum_[i] = next;
            float lane_sum = 0;
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) {
                row[n][e] = power_of_two((row[n][e] - reference) * unit);
                row[n][e + 1] = power_of_two((row[n][e + 1] - reference) * unit);
                lane_sum += row[n][e] + row[n][e + 1];
            }
            sum_[i] = fmaf(sum_[i], factor[i], lane_sum);
        }
    }

    /// Adds a sink (a logit without a key, in the scores' units) to every row. Returns the factor for the
    /// previous sums.
    __device__ __forceinline__ void add_sink(float sink, float (&factor)[2 * m_tiles]) {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            const float next = fmaxf(maximum_[i], sink);
            const float reference = next == -INFINITY ? 0.0f : next;
            factor[i] = power_of_two((maximum_[i] - reference) * unit);
            maximum_[i] = next;
            // Four lanes share a row. Only the first adds the sink.
            sum_[i] = fmaf(sum_[i], factor[i],
                           lane_index() % 4 == 0 ? power_of_two((sink - reference) * unit) : 0.0f);
        }
    }

    /// Returns P summed over row i: 0 for a row without visible keys, at least 1 for others.
    __device__ __forceinline__ float sum(int i) const {
        return row_sum(sum_[i]);
    }
    /// Row i's natural log-sum-exp; `sum` must be sum(i).
    __device__ __forceinline__ ExactLse lse(int i, float sum) const {
        if constexpr (is_natural) return ExactLse::of(maximum_[i], sum);
        return {sum == 0 ? -INFINITY : fmaf(maximum_[i], ln_2, logf(sum)), 0};
    }

  private:
    float maximum_[2 * m_tiles];
    float sum_[2 * m_tiles];  ///< P summed over this lane's columns; row_sum() adds the lanes
};

/// An online softmax that rarely rescales. Kernels that accumulate P V on tensor cores use it, because there
/// each rescaling multiplies the whole O. With is_natural, S holds the scores, which may be large (see
/// large_lse), and scale_log2 is log2(e).
template <int m_tiles, bool is_natural = false>
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

    /// Replaces S by P relative to the row's reference. If the reference changes, rescales o, the previous
    /// blocks' sum.
    template <int n_tiles, int o_tiles>
    __device__ __forceinline__ void update(FragmentC (&s)[m_tiles][n_tiles],
                                           FragmentC (&o)[m_tiles][o_tiles]) {
        if (raise_reference(s)) rescale(o);
        exponentiate(s);
    }

    // update() in steps, for kernels that compute o at the same time.

    /// Raises each row's reference to the row's maximum in S if that is necessary. Returns whether the caller
    /// must then rescale o; the answer is the same in all lanes.
    ///
    /// The reference follows the running maximum only if P would otherwise exceed 2^8. With random scores
    /// this happens only in the first block, so most blocks do not rescale o. P values up to 2^8 cost no
    /// accuracy, because floating-point rounding is relative.
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
        float shift[2 * m_tiles];
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            // If the reference is near the lowest float32, its product with the scale is -inf. The lowest
            // finite number replaces -inf, and P becomes 0.
            shift[i] = reference_[i] == -INFINITY ? 0.0f : fmaxf(reference_[i] * scale_log2_, -FLT_MAX);
        }
        if constexpr (is_natural) {
            if (has_large_) subtract_references(s, shift);
        }
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            float sum = 0;
#pragma unroll
            for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                for (int e = i % 2 * 2; e < i % 2 * 2 + 2; ++e) {
                    s[i / 2][n][e] = power_of_two(fmaf(s[i / 2][n][e], scale_log2_, -shift[i]));
                    sum += s[i / 2][n][e];
                }
            sum_[i] += sum;
        }
    }
    /// Multiplies o by the factors from the latest reference change.
    template <int o_tiles>
    __device__ __forceinline__ void rescale(FragmentC (&o)[m_tiles][o_tiles]) const {
        scale_rows(o, factor_);
    }

    /// Adds a sink (a logit without a key, in S units) to every row. The caller must call this function after
    /// the last update(), so that a large sink does not change the reference while P is summed.
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
            if (lane_index() % 4 == 0) sum_[i] += power_of_two((sink - reference_[i]) * scale_log2_);
    }

    /// Computes o = factor sum P V / sum P (0 for rows without visible keys) and lse, each row's natural
    /// log-sum-exp.
    template <int o_tiles>
    __device__ __forceinline__ void finish(FragmentC (&o)[m_tiles][o_tiles], ExactLse (&lse)[2 * m_tiles],
                                           float factor = 1.0f) {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            const float sum = row_sum(sum_[i]);
            const float inverse = sum == 0 ? 0.0f : __fdividef(factor, sum);
            if constexpr (is_natural) {
                lse[i] = ExactLse::of(reference_[i], sum);
            } else {
                lse[i] = {sum == 0 ? -INFINITY : fmaf(reference_[i] * scale_log2_, ln_2, logf(sum)), 0};
            }
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
            factor_[i] = next == -INFINITY ? 1.0f : power_of_two((reference_[i] - next) * scale_log2_);
            reference_[i] = next;
            sum_[i] *= factor_[i];
        }
        if constexpr (is_natural) {
            bool large = false;
#pragma unroll
            for (int i = 0; i < 2 * m_tiles; ++i) large |= is_large(reference_[i]);
            has_large_ = __any_sync(~0u, large);
        }
    }
    /// Replaces S by S - reference, rounded once, so that no product of S and the scale needs a shift.
    template <int n_tiles>
    __device__ __forceinline__ void subtract_references(FragmentC (&s)[m_tiles][n_tiles],
                                                        float (&shift)[2 * m_tiles]) const {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            const float reference = reference_[i] == -INFINITY ? 0.0f : reference_[i];
            shift[i] = 0;
#pragma unroll
            for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                for (int e = i % 2 * 2; e < i % 2 * 2 + 2; ++e) s[i / 2][n][e] -= reference;
        }
    }

    float scale_log2_;
    float reference_[2 * m_tiles];  ///< in S units: P = 1 where S equals the reference
    float sum_[2 * m_tiles];        ///< P summed over this lane's columns; row_sum() adds the lanes
    float factor_[2 * m_tiles];     ///< factors from the latest reference change
    bool has_large_ = false;        ///< a row in this warp has a large reference; only with is_natural
};

}  // namespace gradtile::attention::cuda::device
