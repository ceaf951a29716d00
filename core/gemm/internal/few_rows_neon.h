#pragma once
/// INTERNAL; include only in sources compiled for aarch64. The instruction set for few_rows_kernel.h: NEON
/// without bf16 products.
#include <arm_neon.h>

#include <gradtile/core/dtype.h>

namespace gradtile::cpu {
namespace {

struct Neon {
    using Vector = float32x4_t;
    // A step has four registers, so 4 rows use 16 of the 32 registers for sums.
    static constexpr int rows = 4;

    template <class T>
    struct Step {
        static constexpr int vectors = 4, elements = 16;
        Vector vector[vectors];
    };

    static Vector zero() { return vdupq_n_f32(0.0f); }
    static Step<float> load(const float* p) {
        return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
    }
    /// The elements with even index, then those with odd index: a bfloat16 is a float's upper half.
    static Step<bfloat16> load(const bfloat16* p) {
        const uint32x4_t low = pairs_at(p), high = pairs_at(p + 8);
        return {{even(low), even(high), odd(low), odd(high)}};
    }
    static Step<float16> load(const float16* p) {
        return {{halves_at(p), halves_at(p + 4), halves_at(p + 8), halves_at(p + 12)}};
    }
    template <class T>
    static void add_products(Vector (&sums)[4], const Step<T>& a, const Step<T>& b) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sums[i] = vfmaq_f32(sums[i], a.vector[i], b.vector[i]);
    }
    static float sum(const Vector (&sums)[4]) {
        return vaddvq_f32(vaddq_f32(vaddq_f32(sums[0], sums[2]), vaddq_f32(sums[1], sums[3])));
    }

  private:
    static uint32x4_t pairs_at(const bfloat16* p) {
        return vreinterpretq_u32_u16(vld1q_u16(&p->bits));
    }
    static Vector even(uint32x4_t pairs) {
        return vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
    }
    static Vector odd(uint32x4_t pairs) {
        return vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
    }
    static Vector halves_at(const float16* p) {
        return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)));
    }
};

}  // namespace
}  // namespace gradtile::cpu
