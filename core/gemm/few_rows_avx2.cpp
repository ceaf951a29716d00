// Products with few rows on AVX2, FMA and F16C.
#include <immintrin.h>

#include <gradtile/core/gemm/internal/few_rows_kernel.h>

namespace gradtile::cpu {
namespace {

struct Avx2 {
    using Vector = __m256;
    // A step has four registers, so 2 rows use 8 of the 16 registers for sums.
    static constexpr int rows = 2;

    template <class T>
    struct Step {
        static constexpr int vectors = 4, elements = 32;
        Vector vector[vectors];
    };

    static Vector zero() { return _mm256_setzero_ps(); }
    static Step<float> load(const float* p) {
        return {
            {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), _mm256_loadu_ps(p + 16), _mm256_loadu_ps(p + 24)}};
    }
    /// The elements with even index, then those with odd index: a bfloat16 is a float's upper half.
    static Step<bfloat16> load(const bfloat16* p) {
        const __m256i low = words_at(p), high = words_at(p + 16);
        return {{even(low), even(high), odd(low), odd(high)}};
    }
    static Step<float16> load(const float16* p) {
        return {{halves_at(p), halves_at(p + 8), halves_at(p + 16), halves_at(p + 24)}};
    }
    template <class T>
    static void add_products(Vector (&sums)[4], const Step<T>& a, const Step<T>& b) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sums[i] = _mm256_fmadd_ps(a.vector[i], b.vector[i], sums[i]);
    }
    static float sum(const Vector (&sums)[4]) {
        const Vector all = _mm256_add_ps(_mm256_add_ps(sums[0], sums[2]), _mm256_add_ps(sums[1], sums[3]));
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }

  private:
    static __m256i words_at(const bfloat16* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    static Vector even(__m256i pairs) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    }
    static Vector odd(__m256i pairs) {
        return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
    }
    static Vector halves_at(const float16* p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
};

}  // namespace

constinit const FewRowsKernels avx2_few_rows = {"avx2", 4, few_rows<Avx2, float>, few_rows<Avx2, bfloat16>,
                                                few_rows<Avx2, float16>};

}  // namespace gradtile::cpu
