#pragma once
/// INTERNAL; include only in sources compiled for AVX-512. The instruction set for few_rows_kernel.h: AVX-512
/// without bf16 products.
#include <immintrin.h>

#include <gradtile/core/dtype.h>

namespace gradtile::cpu {
namespace {

struct Avx512 {
    using Vector = __m512;
    // A step has two registers, so 4 rows need 8 registers for sums.
    static constexpr int rows = 4;

    template <class T>
    struct Step {
        static constexpr int vectors = 2, elements = 32;
        Vector vector[vectors];
    };

    static Vector zero() { return _mm512_setzero_ps(); }
    static Step<float> load(const float* p) { return {{_mm512_loadu_ps(p), _mm512_loadu_ps(p + 16)}}; }
    /// The elements with even index, then those with odd index: a bfloat16 is a float's upper half.
    static Step<bfloat16> load(const bfloat16* p) {
        const __m512i pairs = _mm512_loadu_si512(p);
        return {{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
                 _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)))}};
    }
    static Step<float16> load(const float16* p) {
        const auto* halves = reinterpret_cast<const __m256i*>(p);
        return {
            {_mm512_cvtph_ps(_mm256_loadu_si256(halves)), _mm512_cvtph_ps(_mm256_loadu_si256(halves + 1))}};
    }
    template <class T>
    static void add_products(Vector (&sums)[2], const Step<T>& a, const Step<T>& b) {
        sums[0] = _mm512_fmadd_ps(a.vector[0], b.vector[0], sums[0]);
        sums[1] = _mm512_fmadd_ps(a.vector[1], b.vector[1], sums[1]);
    }
    static float sum(const Vector (&sums)[2]) {
        return _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1]));
    }
};

}  // namespace
}  // namespace gradtile::cpu
