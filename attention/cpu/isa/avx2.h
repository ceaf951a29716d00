#pragma once
/// INTERNAL; include only in sources compiled for AVX2 and FMA. The float32 vector type for the kernels in
/// f32/, with the same operations as Avx512 (attention/cpu/isa/avx512.h).
#include <immintrin.h>

#include <cstdint>

#include <gradtile/attention/cpu/isa/exp2_polynomial.h>
#include <gradtile/core/dtype.h>

namespace gradtile::attention::cpu {
namespace {

struct Avx2 {
    using Vector = __m256;
    static constexpr int lanes = 8;
    // A 6 x 2 accumulator tile leaves 4 of 16 registers, for two operands and one broadcast.
    static constexpr int tile_rows = 6;
    static constexpr int tile_vectors = 2;

    static __m256i lane_numbers() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
    static __m256i first_lanes(std::int64_t n) {
        const int count = n >= lanes ? lanes : static_cast<int>(n);
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane_numbers());
    }

    static Vector load(const float* p) { return _mm256_loadu_ps(p); }
    static Vector load(const bfloat16* p) { return widen(p, load_halves(p)); }
    static Vector load(const float16* p) { return widen(p, load_halves(p)); }
    static void store(float* p, Vector x) { _mm256_storeu_ps(p, x); }
    /// Loads the first n lanes; the other lanes become 0.
    static Vector load_first(const float* p, std::int64_t n) { return _mm256_maskload_ps(p, first_lanes(n)); }
    /// A separate overload, because AVX2 has no masked loads for 16-bit elements.
    template <class T>
    requires(sizeof(T) == 2) static Vector load_first(const T* p, std::int64_t n) {
        alignas(16) std::uint16_t elements[lanes] = {};
        __builtin_memcpy(elements, p, 2 * static_cast<std::size_t>(n < lanes ? n : lanes));
        return load(reinterpret_cast<const T*>(elements));
    }
    template <class T>
    static __m128i load_halves(const T* p) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    }
    static Vector widen(const bfloat16*, __m128i halves) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    }
    static Vector widen(const float16*, __m128i halves) { return _mm256_cvtph_ps(halves); }
    static void store_first(float* p, Vector x, std::int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), x); }
    static Vector broadcast(float x) { return _mm256_set1_ps(x); }
    static Vector zero() { return _mm256_setzero_ps(); }
    static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
    static Vector sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
    static Vector mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
    static Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
    static Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
    /// Returns x in the lanes begin <= lane < end and `otherwise` in the other lanes.
    static Vector keep_lanes(Vector x, std::int64_t begin, std::int64_t end, Vector otherwise) {
        const std::int64_t from = begin < 0 ? 0 : begin, to = end < from ? from : end;
        const __m256i keep = _mm256_andnot_si256(first_lanes(from), first_lanes(to));
        return _mm256_blendv_ps(otherwise, x, _mm256_castsi256_ps(keep));
    }
    /// Returns `otherwise` in the lanes where x is -inf, and x in the other lanes.
    static Vector replace_minus_infinity(Vector x, Vector otherwise) {
        const Vector infinity = _mm256_set1_ps(-__builtin_inff());
        return _mm256_blendv_ps(x, otherwise, _mm256_cmp_ps(x, infinity, _CMP_EQ_OQ));
    }

    /// Reads a 16-bit number from each word of `words`, from bit `shift` on. Returns x in the lanes whose
    /// number is at least `threshold`, and 0 in the other lanes.
    static Vector if_half_at_least(int threshold, const std::uint32_t* words, int shift, Vector x) {
        const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
        const __m256i halves =
            _mm256_and_si256(_mm256_srl_epi32(all, _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(0xffff));
        const __m256i less = _mm256_cmpgt_epi32(_mm256_set1_epi32(threshold), halves);
        return _mm256_andnot_ps(_mm256_castsi256_ps(less), x);
    }

    /// 2^x for x < 128, with a relative error below 2^-22.9. Gives 0 below the normal range (including -inf)
    /// and NaN for NaN.
    static Vector exp2(Vector x) {
        const Vector normal = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ);
        // With this order of the arguments, min() returns NaN for NaN.
        const Vector bounded = _mm256_min_ps(_mm256_set1_ps(127.0f), x);
        const Vector n = _mm256_round_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const Vector f = _mm256_sub_ps(bounded, n);
        const Vector p = exp2_polynomial<Avx2>(f);
        const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
        const Vector scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
        const Vector is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
        return _mm256_and_ps(_mm256_blendv_ps(scaled, x, is_nan), normal);
    }

    /// Transposes an 8 x 8 matrix in place.
    static void transpose(Vector (&row)[lanes]) {
        Vector t[lanes];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {  // interleave neighbouring rows
            t[2 * i] = _mm256_unpacklo_ps(row[2 * i], row[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_ps(row[2 * i], row[2 * i + 1]);
        }
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {  // half-row h of row[4 i + c] = column 4 h + c of rows 4 i .. 4 i + 3
            row[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
            row[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
            row[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
            row[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {  // exchange the 128-bit halves
            t[c] = _mm256_permute2f128_ps(row[c], row[4 + c], 0x20);
            t[4 + c] = _mm256_permute2f128_ps(row[c], row[4 + c], 0x31);
        }
#pragma GCC unroll 8
        for (int i = 0; i < lanes; ++i) row[i] = t[i];
    }

    static float first_lane(Vector x) {
        return _mm256_cvtss_f32(x);
    }
    static float sum_of_lanes(Vector x) {
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    /// The largest lane. A NaN may be lost.
    static float largest_lane(Vector x) {
        const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }

    /// Returns x[i]'s lane sum in lane i. Lanes are added in pairs.
    [[gnu::always_inline]] static inline Vector add_lanes(const Vector (&x)[lanes]) {
        Vector fours[2];  // half h of fours[i] = partial sums of x[4 i .. 4 i + 3]
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            const Vector a =
                add(_mm256_unpacklo_ps(x[4 * i], x[4 * i + 1]), _mm256_unpackhi_ps(x[4 * i], x[4 * i + 1]));
            const Vector b = add(_mm256_unpacklo_ps(x[4 * i + 2], x[4 * i + 3]),
                                 _mm256_unpackhi_ps(x[4 * i + 2], x[4 * i + 3]));
            const __m256d c = _mm256_castps_pd(a), d = _mm256_castps_pd(b);
            fours[i] =
                add(_mm256_castpd_ps(_mm256_unpacklo_pd(c, d)), _mm256_castpd_ps(_mm256_unpackhi_pd(c, d)));
        }
        return add(_mm256_permute2f128_ps(fours[0], fours[1], 0x20),
                   _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
    }
    /// How many V column vectors a group of `rows` rows processes together: 8 sums leave half the registers
    /// for operands.
    static constexpr int value_vectors(int rows) {
        return 8 / rows;
    }
};

}  // namespace
}  // namespace gradtile::attention::cpu
