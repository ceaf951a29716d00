#pragma once
/// INTERNAL, for sources compiled for AVX-512 only. One float32 vector type; everything has internal linkage,
/// so that nothing compiled here can stand in for a function of another source.
#include <immintrin.h>

#include <cstdint>

namespace gradtile::attention::cpu {
namespace {

struct Avx512 {
    using Vector = __m512;
    static constexpr int lanes = 16;
    // 6 x 4 accumulators of 32 registers: 24 independent sums hide the latency of two 4-cycle FMA units, and
    // a step loads 10 operands for 24 FMAs.
    static constexpr int tile_rows = 6;
    static constexpr int tile_vectors = 4;

    static __mmask16 first_lanes(std::int64_t n) {
        return static_cast<__mmask16>(n >= lanes ? 0xffffu : (1u << n) - 1u);
    }

    static Vector load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, Vector x) { _mm512_storeu_ps(p, x); }
    /// The first n lanes; zeros in the others.
    static Vector load_first(const float* p, std::int64_t n) {
        return _mm512_maskz_loadu_ps(first_lanes(n), p);
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
    /// x where begin <= lane < end, otherwise the other value.
    static Vector keep_lanes(Vector x, std::int64_t begin, std::int64_t end, Vector otherwise) {
        const std::int64_t from = begin < 0 ? 0 : begin, to = end < from ? from : end;
        const auto keep = static_cast<__mmask16>(first_lanes(to) & ~first_lanes(from));
        return _mm512_mask_mov_ps(otherwise, keep, x);
    }
    /// otherwise where x is -inf.
    static Vector replace_minus_infinity(Vector x, Vector otherwise) {
        const Vector infinity = _mm512_set1_ps(-__builtin_inff());
        return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, infinity, _CMP_EQ_OQ), otherwise);
    }

    /// 2^x, relative error below 2^-22.9; 0 below the normal range (-inf included), NaN for NaN.
    /// The polynomial is the minimax one of degree 6 for 2^f on [-1/2, 1/2] with 2^0 = 1 exactly.
    static Vector exp2(Vector x) {
        const Vector n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const Vector f = _mm512_sub_ps(x, n);
        Vector p = fma(_mm512_set1_ps(0.00015353360504377633f), f, _mm512_set1_ps(0.0013398875016719103f));
        p = fma(p, f, _mm512_set1_ps(0.00961843691766262f));
        p = fma(p, f, _mm512_set1_ps(0.055503323674201965f));
        p = fma(p, f, _mm512_set1_ps(0.24022647738456726f));
        p = fma(p, f, _mm512_set1_ps(0.6931471824645996f));
        p = fma(p, f, _mm512_set1_ps(1.0f));
        const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
        return _mm512_maskz_scalef_ps(normal, p, n);
    }

    /// Sixteen rows of sixteen floats, transposed in place.
    static void transpose(Vector (&row)[lanes]) {
        Vector t[lanes];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {  // elements of neighbouring rows
            t[2 * i] = _mm512_unpacklo_ps(row[2 * i], row[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_ps(row[2 * i], row[2 * i + 1]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {  // pairs: row[4 i + c] holds column c (of four) of rows 4 i .. 4 i + 3
            const auto pair = [&](int a, int b, bool high) {
                const __m512d x = _mm512_castps_pd(t[4 * i + a]), y = _mm512_castps_pd(t[4 * i + b]);
                return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
            };
            row[4 * i] = pair(0, 2, false);
            row[4 * i + 1] = pair(0, 2, true);
            row[4 * i + 2] = pair(1, 3, false);
            row[4 * i + 3] = pair(1, 3, true);
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {  // 128-bit quarters, a 4 x 4 transposition in two steps
            const Vector even_low = _mm512_shuffle_f32x4(row[c], row[4 + c], 0x88);
            const Vector odd_low = _mm512_shuffle_f32x4(row[c], row[4 + c], 0xdd);
            const Vector even_high = _mm512_shuffle_f32x4(row[8 + c], row[12 + c], 0x88);
            const Vector odd_high = _mm512_shuffle_f32x4(row[8 + c], row[12 + c], 0xdd);
            t[c] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
            t[8 + c] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
            t[4 + c] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
            t[12 + c] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
        }
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) row[i] = t[i];
    }
};

}  // namespace
}  // namespace gradtile::attention::cpu
