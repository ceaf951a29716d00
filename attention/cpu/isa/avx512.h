#pragma once
/// INTERNAL; include only in sources compiled for AVX-512. The float32 vector type for the kernels in f32/,
/// and a transposition. Everything has internal linkage, so that the linker cannot use code compiled here in
/// place of another source's function.
#include <immintrin.h>

#include <cstdint>

#include <gradtile/attention/cpu/isa/exp2_polynomial.h>
#include <gradtile/core/dtype.h>

namespace gradtile::attention::cpu {
namespace {

/// Transposes a 16 x 16 matrix of 32-bit words in place.
inline void transpose_words(__m512i (&row)[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {  // interleave neighbouring rows
        t[2 * i] = _mm512_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // lane h of row[4 i + c] = column 4 h + c of rows 4 i .. 4 i + 3
        row[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        row[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        row[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        row[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {  // transpose the 4 x 4 matrix of 128-bit lanes, in two steps
        const __m512i even_low = _mm512_shuffle_i32x4(row[c], row[4 + c], 0x88);
        const __m512i odd_low = _mm512_shuffle_i32x4(row[c], row[4 + c], 0xdd);
        const __m512i even_high = _mm512_shuffle_i32x4(row[8 + c], row[12 + c], 0x88);
        const __m512i odd_high = _mm512_shuffle_i32x4(row[8 + c], row[12 + c], 0xdd);
        t[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
        t[8 + c] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
        t[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
        t[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) row[i] = t[i];
}

struct Avx512 {
    using Vector = __m512;
    static constexpr int lanes = 16;
    // A 6 x 4 accumulator tile takes 24 of 32 registers. Its 24 independent sums hide the latency (4 cycles)
    // of two FMA units, and a step loads 10 operands for 24 FMAs.
    static constexpr int tile_rows = 6;
    static constexpr int tile_vectors = 4;

    static __mmask16 first_lanes(std::int64_t n) {
        return static_cast<__mmask16>(n >= lanes ? 0xffffu : (1u << n) - 1u);
    }

    static Vector load(const float* p) { return _mm512_loadu_ps(p); }
    static Vector load(const bfloat16* p) { return widen_bf16(load_halves(p)); }
    static Vector load(const float16* p) { return _mm512_cvtph_ps(load_halves(p)); }
    static void store(float* p, Vector x) { _mm512_storeu_ps(p, x); }
    /// Loads the first n lanes; the other lanes become 0.
    static Vector load_first(const float* p, std::int64_t n) {
        return _mm512_maskz_loadu_ps(first_lanes(n), p);
    }
    static Vector load_first(const bfloat16* p, std::int64_t n) {
        return widen_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p));
    }
    static Vector load_first(const float16* p, std::int64_t n) {
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
    }
    template <class T>
    static __m256i load_halves(const T* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    static Vector widen_bf16(__m256i halves) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
    static void store_first(float* p, Vector x, std::int64_t n) {
        _mm512_mask_storeu_ps(p, first_lanes(n), x);
    }
    static Vector broadcast(float x) { return _mm512_set1_ps(x); }
    static Vector zero() { return _mm512_setzero_ps(); }
    static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
    static Vector sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
    static Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
    static Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
    static Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
    /// Returns x in the lanes begin <= lane < end and `otherwise` in the other lanes.
    static Vector keep_lanes(Vector x, std::int64_t begin, std::int64_t end, Vector otherwise) {
        const std::int64_t from = begin < 0 ? 0 : begin, to = end < from ? from : end;
        const auto keep = static_cast<__mmask16>(first_lanes(to) & ~first_lanes(from));
        return _mm512_mask_mov_ps(otherwise, keep, x);
    }
    /// Returns `otherwise` in the lanes where x is -inf, and x in the other lanes.
    static Vector replace_minus_infinity(Vector x, Vector otherwise) {
        const Vector infinity = _mm512_set1_ps(-__builtin_inff());
        return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, infinity, _CMP_EQ_OQ), otherwise);
    }

    /// Reads a 16-bit number from each word of `words`, from bit `shift` on. Returns x in the lanes whose
    /// number is at least `threshold`, and 0 in the other lanes.
    static Vector if_half_at_least(int threshold, const std::uint32_t* words, int shift, Vector x) {
        const __m512i halves = _mm512_and_si512(
            _mm512_srl_epi32(_mm512_loadu_si512(words), _mm_cvtsi32_si128(shift)), _mm512_set1_epi32(0xffff));
        return _mm512_maskz_mov_ps(_mm512_cmpge_epi32_mask(halves, _mm512_set1_epi32(threshold)), x);
    }

    /// 2^x with a relative error below 2^-22.9. Gives 0 below the normal range (including -inf) and NaN for
    /// NaN.
    static Vector exp2(Vector x) {
        const Vector n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const Vector f = _mm512_sub_ps(x, n);
        const Vector p = exp2_polynomial<Avx512>(f);
        const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
        return _mm512_maskz_scalef_ps(normal, p, n);
    }

    static void transpose(Vector (&rows)[lanes]) {
        transpose_words(reinterpret_cast<__m512i(&)[lanes]>(rows));
    }

    static float first_lane(Vector x) { return _mm512_cvtss_f32(x); }
    static float sum_of_lanes(Vector x) { return _mm512_reduce_add_ps(x); }
    /// The largest lane. A NaN may be lost.
    static float largest_lane(Vector x) { return _mm512_reduce_max_ps(x); }

    /// Returns x[i]'s lane sum in lane i. Lanes are added in pairs.
    [[gnu::always_inline]] static inline Vector add_lanes(const Vector (&x)[lanes]) {
        Vector fours[4];  // lane group h of fours[i] = partial sums of x[4 i .. 4 i + 3]
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const Vector a =
                add(_mm512_unpacklo_ps(x[4 * i], x[4 * i + 1]), _mm512_unpackhi_ps(x[4 * i], x[4 * i + 1]));
            const Vector b = add(_mm512_unpacklo_ps(x[4 * i + 2], x[4 * i + 3]),
                                 _mm512_unpackhi_ps(x[4 * i + 2], x[4 * i + 3]));
            const __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
            fours[i] =
                add(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)), _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
        }
        const auto add_groups = [](Vector a, Vector b) __attribute__((always_inline)) {
            return add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
        };
        return add_groups(add_groups(fours[0], fours[1]), add_groups(fours[2], fours[3]));
    }
    /// How many V column vectors a group of `rows` rows processes together: four rows have 16 sums, half the
    /// registers. Fewer rows process at most eight vectors, the columns of head dim 128.
    static constexpr int value_vectors(int rows) {
        return rows == 4 ? 4 : 8;
    }
};

}  // namespace
}  // namespace gradtile::attention::cpu
