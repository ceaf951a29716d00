#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. The element-wise steps for the bf16
/// kernels: they read scores, and write probabilities and their gradients as operand tiles. Exponents are in
/// base 2.
#include <immintrin.h>

#include <numbers>

#include <gradtile/attention/cpu/bf16/pack.h>
#include <gradtile/attention/cpu/row_ranges.h>
#include <gradtile/attention/cpu/score_rows.h>

namespace gradtile::attention::cpu {
namespace {

constexpr float infinity = __builtin_inff();

/// 2^x with a relative error of 3e-6; the result is rounded to bf16 (2^-8) before it is used. exp2(0) is
/// exactly 1, and exp2(-inf) is 0. With f = x - floor(x), which vreduceps computes, a degree-4 minimax
/// polynomial, which is 1 at f = 0, gives 2^f. vscalefps multiplies it by 2^floor(x). For x = -inf, f is 0.
inline __m512 exp2(__m512 x) {
    const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 power = _mm512_set1_ps(0.013426683843135834f);
    power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(0.052242472767829895f));
    power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(0.241280198097229f));
    power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(0.6930448412895203f));
    power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(power, x);
}

/// Rounds 32 numbers to bf16. The result contains the numbers of `low`, then those of `high`.
inline __m512i round_pair(__m512 low, __m512 high) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

/// Sets the scores for rows [row, row + 32) and the keys `keys` to -inf where the mask or the row
/// ranges hide the key.
inline void mask_square(const Mask& mask, const KeyRanges& ranges, const Matrix& scores, std::int64_t row,
                        IndexRange keys) {
    for (std::int64_t r = 0; r < square; ++r) {
        const IndexRange visible = mask.visible_keys(row + r);
        for (std::int64_t j = keys.begin; j < keys.end; j += 16) {
            const __mmask16 seen = static_cast<__mmask16>(first_lanes<__mmask16>(visible.end - j) &
                                                          ~first_lanes<__mmask16>(visible.begin - j));
            float* const s = scores.at(r, j - keys.begin);
            _mm512_storeu_ps(s, _mm512_mask_mov_ps(_mm512_set1_ps(-infinity), seen, _mm512_loadu_ps(s)));
        }
        if (ranges) ranges.hide(row + r, keys.begin, square, scores.at(r, 0), -infinity);
    }
}

/// How the softmax reads scores in a call without a score rule. The scores are products that are not yet
/// multiplied by the scale.
struct PlainScores {
    float unit;  ///< scale * log2(e): turns a score difference into a base-2 exponent

    /// Returns the dropout factors by which row r's probabilities are multiplied in O; null: all factors are
    /// 1.
    const float* factors(std::int64_t) const { return nullptr; }
};

/// How the softmax reads scores in a call with a score rule.
struct RuleScores {
    const ScoreRule<float>& rule;
    std::int64_t first_row, first_key, columns;
    float* memory;  ///< [columns]
    static constexpr float unit = std::numbers::log2e_v<float>;

    const float* factors(std::int64_t r) const {
        if (!rule.drops()) return nullptr;
        dropout_factors(rule, first_row + r, first_key, columns, memory);
        return memory;
    }
};

/// Running softmax maximum and sum for 16 rows. A row's sum is kept as 16 partial sums until the end.
struct Statistics {
    alignas(64) float maximum[16];  ///< so far, in score units
    alignas(64) float sum[16][16];  ///< sums of P
};

/// The sink counts as a key whose value is 0; -inf: no sink.
inline void reset(Statistics& statistics, float sink) {
    _mm512_store_ps(statistics.maximum, _mm512_set1_ps(sink));
    const __m512 one_in_total = _mm512_maskz_mov_ps(1, _mm512_set1_ps(1.0f));
    for (auto& sum : statistics.sum)
        _mm512_store_ps(sum, sink > -infinity ? one_in_total : _mm512_setzero_ps());
}

/// One step of the online softmax (FlashAttention-2, algorithm 1, lines 9-10) for 16 score rows [16,
/// columns]; columns is a multiple of 32. Writes P = 2^(unit * (score - new maximum)), times its factors, as
/// left operands to p.tile(i, first), p.tile(i, first + 1), .., and the factors for the sums so far to
/// `rescale`. The maximum is subtracted before the multiplication: a sink or a bias may be as large as
/// float32 allows, and multiplied by log2(e) it would overflow. The product maximum * unit would also have a
/// rounding error, which reaches 2^6 for scores near 1e9.
template <class Scores>
void softmax_step(Statistics& statistics, const Matrix& scores, std::int64_t columns, const Scores& reading,
                  const Operand& p, std::int64_t i, std::int64_t first, float (&rescale)[16]) {
    __m512i maxima[16];
    for (int r = 0; r < 16; ++r) {
        const float* const s = scores.at(r, 0);
        __m512 even = _mm512_loadu_ps(s), odd = _mm512_loadu_ps(s + 16);
        for (std::int64_t j = 32; j < columns; j += 32) {
            even = _mm512_max_ps(even, _mm512_loadu_ps(s + j));
            odd = _mm512_max_ps(odd, _mm512_loadu_ps(s + j + 16));
        }
        maxima[r] = _mm512_castps_si512(_mm512_max_ps(even, odd));
    }
    transpose_words(maxima);
    __m512 largest = _mm512_castsi512_ps(maxima[0]);
    for (const __m512i& lane : maxima) largest = _mm512_max_ps(largest, _mm512_castsi512_ps(lane));
    const __m512 old_maximum = _mm512_load_ps(statistics.maximum);
    const __m512 maximum = _mm512_max_ps(old_maximum, largest);
    _mm512_store_ps(statistics.maximum, maximum);

    // For a row without visible keys so far, any finite reference gives 2^-inf = 0.
    const __mmask16 seen = _mm512_cmp_ps_mask(maximum, _mm512_set1_ps(-infinity), _CMP_NEQ_UQ);
    alignas(64) float reference[16];
    const __m512 references = _mm512_maskz_mov_ps(seen, maximum);
    _mm512_store_ps(reference, references);
    const __m512 unit = _mm512_set1_ps(reading.unit);
    _mm512_storeu_ps(rescale, exp2(_mm512_mul_ps(unit, _mm512_sub_ps(old_maximum, references))));

    for (int r = 0; r < 16; ++r) {
        const float* const s = scores.at(r, 0);
        const __m512 row_reference = _mm512_set1_ps(reference[r]);
        const float* const factors = reading.factors(r);
        // The block is summed separately, because the previous sum may be much larger than each term in the
        // block.
        __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
        bfloat16* to = p.tile(i, first) + r * tile_depth;
        for (std::int64_t j = 0; j < columns; j += 32, to += tile_elements) {
            __m512 low = exp2(_mm512_mul_ps(unit, _mm512_sub_ps(_mm512_loadu_ps(s + j), row_reference)));
            __m512 high =
                exp2(_mm512_mul_ps(unit, _mm512_sub_ps(_mm512_loadu_ps(s + j + 16), row_reference)));
            even = _mm512_add_ps(even, low);
            odd = _mm512_add_ps(odd, high);
            if (factors != nullptr) {
                low = _mm512_mul_ps(low, _mm512_loadu_ps(factors + j));
                high = _mm512_mul_ps(high, _mm512_loadu_ps(factors + j + 16));
            }
            _mm512_store_si512(to, round_pair(low, high));
        }
        const __m512 before = _mm512_load_ps(statistics.sum[r]);
        _mm512_store_ps(statistics.sum[r],
                        _mm512_fmadd_ps(before, _mm512_set1_ps(rescale[r]), _mm512_add_ps(even, odd)));
    }
}

/// A row block's P and dS, as operands for the backward products.
struct BackwardOperands {
    Operand p;             ///< right operand, summed over rows
    Operand ds;            ///< right operand, summed over rows
    Operand ds_over_keys;  ///< left operand, summed over keys
};

/// Stores rows `row` and row + 1 of one square's P and dS; i and j count squares.
[[gnu::always_inline]] inline void store_row_pair(const BackwardOperands& out, std::int64_t i, std::int64_t j,
                                                  std::int64_t row, const __m512i (&p)[2],
                                                  const __m512i (&ds)[2], const Interleave& interleave) {
    for (int e = 0; e < 2; ++e) {
        bfloat16* const tile = out.ds_over_keys.tile(2 * i + row / tile_rows, j);
        _mm512_store_si512(tile + (row + e) % tile_rows * tile_depth, ds[e]);
    }
    const std::int64_t pair = row / 2 * tile_depth;
    _mm512_store_si512(out.p.tile(2 * j, i) + pair, interleave.first(p[0], p[1]));
    _mm512_store_si512(out.p.tile(2 * j + 1, i) + pair, interleave.second(p[0], p[1]));
    _mm512_store_si512(out.ds.tile(2 * j, i) + pair, interleave.first(ds[0], ds[1]));
    _mm512_store_si512(out.ds.tile(2 * j + 1, i) + pair, interleave.second(ds[0], ds[1]));
}

/// A square's per-row numbers, for the backward pass. The LSE and its remainder are in base 2.
struct RowNumbers {
    const float *lse, *lse_remainder, *delta;
};

/// Computes P = 2^(scale * S - lse) and dS = P (dP - D) for one square (FlashAttention-2, algorithm 2, lines
/// 11-14). i and j count squares.
inline void compute_p_and_d_s(const BackwardOperands& out, std::int64_t i, std::int64_t j, const Matrix& s,
                              const Matrix& d_p, float scale, const RowNumbers& rows,
                              const Interleave& interleave) {
    const __m512 scales = _mm512_set1_ps(scale);
    for (std::int64_t row = 0; row < square; row += 2) {
        __m512i p[2], ds[2];
#pragma GCC unroll 2
        for (int e = 0; e < 2; ++e) {
            const __m512 lse = _mm512_set1_ps(rows.lse[row + e]),
                         lse_remainder = _mm512_set1_ps(rows.lse_remainder[row + e]),
                         delta = _mm512_set1_ps(rows.delta[row + e]);
            __m512 p_half[2], ds_half[2];
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                const __m512 score = _mm512_loadu_ps(s.at(row + e, 16 * half));
                p_half[half] = exp2(_mm512_sub_ps(_mm512_fmsub_ps(score, scales, lse), lse_remainder));
                const __m512 d_p_minus_delta =
                    _mm512_sub_ps(_mm512_loadu_ps(d_p.at(row + e, 16 * half)), delta);
                ds_half[half] = _mm512_mul_ps(p_half[half], d_p_minus_delta);
            }
            p[e] = round_pair(p_half[0], p_half[1]);
            ds[e] = round_pair(ds_half[0], ds_half[1]);
        }
        store_row_pair(out, i, j, row, p, ds, interleave);
    }
}

/// Stores one square's P and dS; i and j count squares.
inline void store_p_and_d_s(const BackwardOperands& out, std::int64_t i, std::int64_t j, const Matrix& p,
                            const Matrix& d_s, const Interleave& interleave) {
    const auto row_of = [](const Matrix& x, std::int64_t row) {
        return round_pair(_mm512_loadu_ps(x.at(row, 0)), _mm512_loadu_ps(x.at(row, 16)));
    };
    for (std::int64_t row = 0; row < square; row += 2) {
        const __m512i p_rows[2] = {row_of(p, row), row_of(p, row + 1)};
        const __m512i ds_rows[2] = {row_of(d_s, row), row_of(d_s, row + 1)};
        store_row_pair(out, i, j, row, p_rows, ds_rows, interleave);
    }
}

}  // namespace
}  // namespace gradtile::attention::cpu
