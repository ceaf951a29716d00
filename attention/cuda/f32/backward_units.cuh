#pragma once
/// The float32 backward kernel's parameters, and the powers of two by which it scales its factors.
#include <cstdint>

#include <gradtile/attention/cuda/common/row_ranges.h>
#include <gradtile/attention/score_rule.h>
#include <gradtile/attention/cuda/common/block_sequence.cuh>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/attention/cuda/common/magnitude.cuh>
#include <gradtile/attention/cuda/common/mask.cuh>
#include <gradtile/attention/cuda/common/task_order.cuh>

namespace gradtile::attention::cuda {

struct F32BackwardParameters {
    device::TensorView<const float> q, k, v, d_o;
    device::TensorView<float> d_q, d_k, d_v;
    const float* lse;                 ///< [B, Hq, Sq], natural log
    const float* lse_remainder;       ///< [B, Hq, Sq]; null: 0
    const int* has_large_lse;         ///< null: no, because there are no biases
    const float* lse_log2;            ///< [B, Hq, Sq]: LSE in base 2; +inf for rows that see no key
    const float* delta;               ///< [B, Hq, Sq]: D / dropout_scale, where D = rowsum(dO * O) - dLSE
    const std::uint32_t* magnitudes;  ///< largest |q|, |k|, |v|, |d_o| and |d_lse|: see measure()
    bool has_d_lse;
    device::DeviceMask mask;
    device::Sizes sizes;
    int measured_sequences;   ///< sequences in `magnitudes`
    float scale, scale_log2;  ///< scale_log2 = log2(e) * scale
    float dropout_scale;      ///< 1 without dropout; P, dP and dS are computed without this factor
    ScoreOptions scores;
    PackedOffsets packed;
    PackedTasks key_tasks;  ///< the tasks (key blocks) if sequences are packed
    device::TaskOrder order;
    bool q_vectors, k_vectors, v_vectors, d_o_vectors;  ///< whether has_vector_rows() holds
    bool d_q_pairs, d_k_pairs, d_v_pairs;
    std::int32_t* turns;  ///< if deterministic: the next task, then the Turns counters; else null
    int turn_steps;       ///< steps per (batch, head)
    DeviceRowRanges row_ranges;
};

namespace device {

/// Factors that scale a block's tiles into binary16's range, and factors that convert the sums back. All
/// factors are powers of two, apart from the caller's scale and the dropout scale, which some factors for S
/// and the gradients also contain.
///
/// P <= 1 is multiplied by 2^14. |dP - D| <= 2 columns max|V| max|dO| + max|dLSE|, because O rows are
/// averages of V rows. V and dO are scaled to less than 2^14, so the first term becomes 2^29 * columns. The
/// dS factor, 2^-14 / columns, brings dS below 2^15. If dLSE times the V and dO factors would reach 2^28, V's
/// factor is smaller.
struct Units {
    PowerOfTwo q, k, v, d_o;
    float score, d_p;     ///< convert the sums S and dP to base 2 and to dS units
    float product;        ///< converts the sum S to scale q k
    float v_and_d_o[2];   ///< two powers of two whose product is v.factor * d_o.factor
    float d_q, d_k, d_v;  ///< convert sums to gradients
    static constexpr float probability = 16384;

    /// Converts D to dS units. The multiplication order keeps intermediate results in range: all-zero heads
    /// have factors so large that their product alone would overflow.
    __device__ __forceinline__ float delta(float row_delta) const {
        return row_delta * v_and_d_o[0] * d_p * v_and_d_o[1];
    }

    __device__ Units(const F32BackwardParameters& p, int sequence, int key_head, int columns)
        : q(range(p, 0, sequence, key_head)),
          k(range(p, 1, sequence, key_head)),
          v(range(p, 2, sequence, key_head)),
          d_o(range(p, 3, sequence, key_head)) {
        const float d_s = 1.0f / (16384.0f * static_cast<float>(columns));
        if (p.has_d_lse) {
            // The factors must bring dLSE below 2^28. V's factor is reduced first, because V is only needed
            // for dP, while dV needs dO's precision. dO's factor is reduced only if V's factor is already the
            // smallest one.
            const int sum_of_exponents = 14 + range(p, 4, sequence, key_head).exponent();
            v.limit_exponent(sum_of_exponents - d_o.exponent());
            d_o.limit_exponent(sum_of_exponents - v.exponent());
        }
        score = p.scale_log2 * q.inverse * k.inverse;
        product = p.scale * q.inverse * k.inverse;
        d_p = d_s / probability;
        d_v = d_o.inverse / probability * p.dropout_scale;
        const int exponent = v.exponent() + d_o.exponent();
        v_and_d_o[0] = PowerOfTwo::from_exponent(exponent / 2);
        v_and_d_o[1] = PowerOfTwo::from_exponent(exponent - exponent / 2);
        const float d_s_inverse = 1 / v_and_d_o[0] * (p.scale * p.dropout_scale / d_s) * (1 / v_and_d_o[1]);
        d_q = d_s_inverse * k.inverse;
        d_k = d_s_inverse * q.inverse;
    }

  private:
    __device__ static PowerOfTwo range(const F32BackwardParameters& p, int tensor, int sequence,
                                       int key_head) {
        return range_of(p.magnitudes, tensor, p.measured_sequences, sequence, p.sizes.heads / p.sizes.group,
                        key_head);
    }
};

}  // namespace device

}  // namespace gradtile::attention::cuda
