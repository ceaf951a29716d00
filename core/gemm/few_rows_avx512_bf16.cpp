// Products with few rows on AVX-512 with bf16 products: with one instruction for 32 products instead of four,
// the kernel keeps up with reading weights from the cache.
#include <gradtile/core/gemm/internal/few_rows_avx512.h>
#include <gradtile/core/gemm/internal/few_rows_kernel.h>

namespace gradtile::cpu {
namespace {

struct Avx512Bf16 {
    using Vector = __m512;
    static constexpr int rows = 4;

    template <class T>
    struct Step {
        static constexpr int vectors = 2, elements = 64;
        __m512bh vector[vectors];
    };

    static Vector zero() { return _mm512_setzero_ps(); }
    static Step<bfloat16> load(const bfloat16* p) { return {{pairs_at(p), pairs_at(p + 32)}}; }
    static void add_products(Vector (&sums)[2], const Step<bfloat16>& a, const Step<bfloat16>& b) {
        sums[0] = _mm512_dpbf16_ps(sums[0], a.vector[0], b.vector[0]);
        sums[1] = _mm512_dpbf16_ps(sums[1], a.vector[1], b.vector[1]);
    }
    static float sum(const Vector (&sums)[2]) { return Avx512::sum(sums); }

  private:
    static __m512bh pairs_at(const bfloat16* p) { return (__m512bh)_mm512_loadu_si512(p); }
};

}  // namespace

constinit const FewRowsKernels avx512_bf16_few_rows = {
    "avx512-bf16", 8, few_rows<Avx512, float>, few_rows<Avx512Bf16, bfloat16>, few_rows<Avx512, float16>};

}  // namespace gradtile::cpu
