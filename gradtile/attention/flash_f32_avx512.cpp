// The float32 block kernels on AVX-512.
#include <immintrin.h>

#include <gradtile/attention/flash_f32.h>

namespace gradtile::attention::cpu {
namespace {

/// Sixteen floats in a register.
struct Vector {
    static constexpr int lanes = 16;
    /// Columns of registers a product's tile has at most, and rows for a given number of columns: rows *
    /// columns accumulators, the columns of B and one broadcast fill the 32 registers, and 24 independent
    /// sums hide the latency of two FMA units.
    static constexpr int max_columns = 4;
    static constexpr int tile_rows(int columns) { return columns == 1 ? 12 : 24 / columns; }

    __m512 value;

    static Vector zero() { return {_mm512_setzero_ps()}; }
    static Vector all(float x) { return {_mm512_set1_ps(x)}; }
    static Vector load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static Vector load_first(const float* p, std::int64_t count) {
        return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1u), p)};
    }
    void store(float* p) const { _mm512_storeu_ps(p, value); }
    void store_first(float* p, std::int64_t count) const {
        _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1u), value);
    }

    friend Vector operator+(Vector a, Vector b) { return {_mm512_add_ps(a.value, b.value)}; }
    friend Vector operator-(Vector a, Vector b) { return {_mm512_sub_ps(a.value, b.value)}; }
    friend Vector operator*(Vector a, Vector b) { return {_mm512_mul_ps(a.value, b.value)}; }
    static Vector fma(Vector a, Vector b, Vector c) { return {_mm512_fmadd_ps(a.value, b.value, c.value)}; }
    static Vector max(Vector a, Vector b) { return {_mm512_max_ps(a.value, b.value)}; }
    /// a where first[lane] <= j < past[lane], else b.
    static Vector where_visible(const std::int32_t* first, const std::int32_t* past, std::int32_t j, Vector a,
                                Vector b) {
        const __m512i at = _mm512_set1_epi32(j);
        const __mmask16 begun = _mm512_cmple_epi32_mask(_mm512_loadu_si512(first), at);
        const __mmask16 visible = _mm512_mask_cmplt_epi32_mask(begun, at, _mm512_loadu_si512(past));
        return {_mm512_mask_blend_ps(visible, b.value, a.value)};
    }

    /// rows[i][j] <-> rows[j][i].
    static void transpose(Vector (&rows)[lanes]) {
        __m512 pairs[lanes], quads[lanes];
        for (int i = 0; i < lanes; i += 2) {
            pairs[i] = _mm512_unpacklo_ps(rows[i].value, rows[i + 1].value);
            pairs[i + 1] = _mm512_unpackhi_ps(rows[i].value, rows[i + 1].value);
        }
        const auto unpack = [](__m512 a, __m512 b, bool high) {
            const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
            return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
        };
        for (int i = 0; i < lanes; i += 4)  // quads[i + j]: quarter q holds column 4q + j of rows i .. i+3
            for (int j = 0; j < 4; ++j)
                quads[i + j] = unpack(pairs[i + j / 2], pairs[i + 2 + j / 2], j % 2 == 1);
        for (int j = 0; j < 4; ++j) {
            const __m512 upper_even = _mm512_shuffle_f32x4(quads[j], quads[4 + j], 0x88);
            const __m512 upper_odd = _mm512_shuffle_f32x4(quads[j], quads[4 + j], 0xdd);
            const __m512 lower_even = _mm512_shuffle_f32x4(quads[8 + j], quads[12 + j], 0x88);
            const __m512 lower_odd = _mm512_shuffle_f32x4(quads[8 + j], quads[12 + j], 0xdd);
            rows[j].value = _mm512_shuffle_f32x4(upper_even, lower_even, 0x88);
            rows[4 + j].value = _mm512_shuffle_f32x4(upper_odd, lower_odd, 0x88);
            rows[8 + j].value = _mm512_shuffle_f32x4(upper_even, lower_even, 0xdd);
            rows[12 + j].value = _mm512_shuffle_f32x4(upper_odd, lower_odd, 0xdd);
        }
    }

    /// 2^x to 2 ulp; 0 at -inf. x = n + f, f in [-1/2, 1/2], 2^f by a minimax polynomial of degree 6.
    static Vector exp2(Vector x) {
        const __m512 bounded = _mm512_max_ps(x.value, _mm512_set1_ps(-200.0f));  // no inf - inf; 2^-200 is 0
        const __m512 n = _mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m512 f = _mm512_sub_ps(bounded, n);
        __m512 power = _mm512_set1_ps(1.535336188319500e-4f);
        power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(1.339887440266574e-3f));
        power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(9.618437357674640e-3f));
        power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(5.550332471162809e-2f));
        power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(2.402264791363012e-1f));
        power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(6.931472028550421e-1f));
        power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(1.0f));
        return {_mm512_scalef_ps(power, n)};
    }
};

}  // namespace
}  // namespace gradtile::attention::cpu

#include <gradtile/attention/flash_f32_blocks.h>

namespace gradtile::attention::cpu {
const FlashKernels<float> avx512_f32_kernels = make_kernels("avx512");
}  // namespace gradtile::attention::cpu
