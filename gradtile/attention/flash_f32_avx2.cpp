// The float32 block kernels on AVX2 with FMA.
#include <immintrin.h>

#include <gradtile/attention/flash_f32.h>

namespace gradtile::attention::cpu {
namespace {

/// Eight floats in a register.
struct Vector {
    static constexpr int lanes = 8;
    /// As many accumulators as sixteen registers hold beside the columns of B and one broadcast.
    static constexpr int max_columns = 3;
    static constexpr int tile_rows(int columns) { return columns == 3 ? 4 : columns == 2 ? 6 : 8; }

    __m256 value;

    static Vector zero() { return {_mm256_setzero_ps()}; }
    static Vector all(float x) { return {_mm256_set1_ps(x)}; }
    static Vector load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static __m256i first_lanes(std::int64_t count) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<std::int32_t>(count)),
                                  _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
    static Vector load_first(const float* p, std::int64_t count) {
        return {_mm256_maskload_ps(p, first_lanes(count))};
    }
    void store(float* p) const { _mm256_storeu_ps(p, value); }
    void store_first(float* p, std::int64_t count) const {
        _mm256_maskstore_ps(p, first_lanes(count), value);
    }

    friend Vector operator+(Vector a, Vector b) { return {_mm256_add_ps(a.value, b.value)}; }
    friend Vector operator-(Vector a, Vector b) { return {_mm256_sub_ps(a.value, b.value)}; }
    friend Vector operator*(Vector a, Vector b) { return {_mm256_mul_ps(a.value, b.value)}; }
    static Vector fma(Vector a, Vector b, Vector c) { return {_mm256_fmadd_ps(a.value, b.value, c.value)}; }
    static Vector max(Vector a, Vector b) { return {_mm256_max_ps(a.value, b.value)}; }
    /// a where first[lane] <= j < past[lane], else b.
    static Vector where_visible(const std::int32_t* first, const std::int32_t* past, std::int32_t j, Vector a,
                                Vector b) {
        const __m256i at = _mm256_set1_epi32(j);
        const __m256i early =
            _mm256_cmpgt_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(first)), at);
        const __m256i before_end =
            _mm256_cmpgt_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(past)), at);
        return {
            _mm256_blendv_ps(b.value, a.value, _mm256_castsi256_ps(_mm256_andnot_si256(early, before_end)))};
    }

    /// rows[i][j] <-> rows[j][i].
    static void transpose(Vector (&rows)[lanes]) {
        __m256 pairs[lanes], quads[lanes];
        for (int i = 0; i < lanes; i += 2) {
            pairs[i] = _mm256_unpacklo_ps(rows[i].value, rows[i + 1].value);
            pairs[i + 1] = _mm256_unpackhi_ps(rows[i].value, rows[i + 1].value);
        }
        for (int i = 0; i < lanes; i += 4) {  // quads[i + j]: half h holds column 4h + j of rows i .. i+3
            quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
            quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
            quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
            quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
        }
        for (int j = 0; j < 4; ++j) {
            rows[j].value = _mm256_permute2f128_ps(quads[j], quads[4 + j], 0x20);
            rows[4 + j].value = _mm256_permute2f128_ps(quads[j], quads[4 + j], 0x31);
        }
    }

    /// 2^x to 2 ulp; 0 below 2^-126 (no subnormals). x = n + f, f in [-1/2, 1/2], 2^f by a minimax polynomial
    /// of degree 6, times 2^n put together in the exponent's bits.
    static Vector exp2(Vector x) {
        const __m256 smallest = _mm256_set1_ps(-126.0f);
        const __m256 bounded = _mm256_min_ps(_mm256_max_ps(x.value, smallest), _mm256_set1_ps(127.0f));
        const __m256 n = _mm256_round_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m256 f = _mm256_sub_ps(bounded, n);
        __m256 power = _mm256_set1_ps(1.535336188319500e-4f);
        power = _mm256_fmadd_ps(power, f, _mm256_set1_ps(1.339887440266574e-3f));
        power = _mm256_fmadd_ps(power, f, _mm256_set1_ps(9.618437357674640e-3f));
        power = _mm256_fmadd_ps(power, f, _mm256_set1_ps(5.550332471162809e-2f));
        power = _mm256_fmadd_ps(power, f, _mm256_set1_ps(2.402264791363012e-1f));
        power = _mm256_fmadd_ps(power, f, _mm256_set1_ps(6.931472028550421e-1f));
        power = _mm256_fmadd_ps(power, f, _mm256_set1_ps(1.0f));
        const __m256i exponent =
            _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
        const __m256 result = _mm256_mul_ps(power, _mm256_castsi256_ps(exponent));
        return {_mm256_and_ps(result, _mm256_cmp_ps(x.value, smallest, _CMP_GE_OQ))};
    }
};

}  // namespace
}  // namespace gradtile::attention::cpu

#include <gradtile/attention/flash_f32_blocks.h>

namespace gradtile::attention::cpu {
const FlashKernels<float> avx2_f32_kernels = make_kernels("avx2");
}  // namespace gradtile::attention::cpu
