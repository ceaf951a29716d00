// Products with few rows on NEON with bf16 products (BFDOT): one instruction for 8 products instead of four.
#include <gradtile/core/gemm/internal/few_rows_kernel.h>
#include <gradtile/core/gemm/internal/few_rows_neon.h>

namespace gradtile::cpu {
namespace {

struct NeonBf16 {
    using Vector = float32x4_t;
    static constexpr int rows = 4;

    template <class T>
    struct Step {
        static constexpr int vectors = 4, elements = 32;
        bfloat16x8_t vector[vectors];
    };

    static Vector zero() { return Neon::zero(); }
    static Step<bfloat16> load(const bfloat16* p) {
        return {{pairs_at(p), pairs_at(p + 8), pairs_at(p + 16), pairs_at(p + 24)}};
    }
    static void add_products(Vector (&sums)[4], const Step<bfloat16>& a, const Step<bfloat16>& b) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sums[i] = vbfdotq_f32(sums[i], a.vector[i], b.vector[i]);
    }
    static float sum(const Vector (&sums)[4]) {
        return Neon::sum(sums);
    }

  private:
    static bfloat16x8_t pairs_at(const bfloat16* p) {
        return vreinterpretq_bf16_u16(vld1q_u16(&p->bits));
    }
};

}  // namespace

constinit const FewRowsKernels neon_bf16_few_rows = {"neon-bf16", 4, few_rows<Neon, float>,
                                                     few_rows<NeonBf16, bfloat16>, few_rows<Neon, float16>};

}  // namespace gradtile::cpu
