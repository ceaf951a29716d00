#pragma once
/// INTERNAL; include only in sources compiled for aarch64. The float32 vector type for the kernels in f32/
/// and few_queries/, with the same operations as Avx2 (attention/cpu/isa/avx2.h).
#include <arm_neon.h>

#include <cstdint>

#include <gradtile/attention/cpu/isa/exp2_polynomial.h>
#include <gradtile/core/dtype.h>

namespace gradtile::attention::cpu {
namespace {

struct Neon {
    using Vector = float32x4_t;
    static constexpr int lanes = 4;
    // A 5 x 4 accumulator tile takes 20 of 32 registers. A step holds 5 factors and 4 operands beside it,
    // because no instruction broadcasts from memory while it multiplies; with 6 rows the compiler would spill
    // sums.
    static constexpr int tile_rows = 5;
    static constexpr int tile_vectors = 4;

    static uint32x4_t first_lanes(std::int64_t n) {
        constexpr std::int32_t numbers[lanes] = {0, 1, 2, 3};
        const int count = n >= lanes ? lanes : static_cast<int>(n);
        return vcltq_s32(vld1q_s32(numbers), vdupq_n_s32(count));
    }

    static Vector load(const float* p) { return vld1q_f32(p); }
    static Vector load(const bfloat16* p) {
        return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16));
    }
    static Vector load(const float16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits))); }
    static void store(float* p, Vector x) { vst1q_f32(p, x); }
    /// Loads the first n lanes; the other lanes become 0.
    template <class T>
    static Vector load_first(const T* p, std::int64_t n) {
        if (n >= lanes) return load(p);
        T elements[lanes] = {};
        for (std::int64_t i = 0; i < n; ++i) elements[i] = p[i];
        return load(elements);
    }
    static void store_first(float* p, Vector x, std::int64_t n) {
        if (n >= lanes) return store(p, x);
        float elements[lanes];
        store(elements, x);
        for (std::int64_t i = 0; i < n; ++i) p[i] = elements[i];
    }
    static Vector broadcast(float x) { return vdupq_n_f32(x); }
    static Vector zero() { return vdupq_n_f32(0.0f); }
    static Vector add(Vector a, Vector b) { return vaddq_f32(a, b); }
    static Vector sub(Vector a, Vector b) { return vsubq_f32(a, b); }
    static Vector mul(Vector a, Vector b) { return vmulq_f32(a, b); }
    static Vector fma(Vector a, Vector b, Vector c) { return vfmaq_f32(c, a, b); }
    static Vector max(Vector a, Vector b) { return vmaxq_f32(a, b); }
    /// Returns x in the lanes begin <= lane < end and `otherwise` in the other lanes.
    static Vector keep_lanes(Vector x, std::int64_t begin, std::int64_t end, Vector otherwise) {
        const std::int64_t from = begin < 0 ? 0 : begin, to = end < from ? from : end;
        return vbslq_f32(vbicq_u32(first_lanes(to), first_lanes(from)), x, otherwise);
    }
    /// Returns `otherwise` in the lanes where x is -inf, and x in the other lanes.
    static Vector replace_minus_infinity(Vector x, Vector otherwise) {
        return vbslq_f32(vceqq_f32(x, broadcast(-__builtin_inff())), otherwise, x);
    }

    /// Reads a 16-bit number from each word of `words`, from bit `shift` on. Returns x in the lanes whose
    /// number is at least `threshold`, and 0 in the other lanes.
    static Vector if_half_at_least(int threshold, const std::uint32_t* words, int shift, Vector x) {
        const uint32x4_t halves =
            vandq_u32(vshlq_u32(vld1q_u32(words), vdupq_n_s32(-shift)), vdupq_n_u32(0xffff));
        const uint32x4_t kept = vcgeq_s32(vreinterpretq_s32_u32(halves), vdupq_n_s32(threshold));
        return vreinterpretq_f32_u32(vandq_u32(kept, vreinterpretq_u32_f32(x)));
    }

    /// 2^x for x < 128, with a relative error below 2^-22.9. Gives 0 below the normal range (including -inf)
    /// and NaN for NaN.
    static Vector exp2(Vector x) {
        const uint32x4_t too_small = vcltq_f32(x, broadcast(-126.0f));
        const Vector bounded = vminq_f32(x, broadcast(127.0f));  // NaN for NaN
        const Vector n = vrndnq_f32(bounded);
        const Vector p = exp2_polynomial<Neon>(sub(bounded, n));
        const int32x4_t exponent = vshlq_n_s32(vcvtq_s32_f32(n), 23);  // 0 for NaN
        const Vector scaled = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), exponent));
        return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(scaled), too_small));
    }

    /// Transposes a 4 x 4 matrix in place.
    static void transpose(Vector (&row)[lanes]) {
        const float32x4x2_t a = vtrnq_f32(row[0], row[1]), b = vtrnq_f32(row[2], row[3]);
        for (int i = 0; i < 2; ++i) {
            row[i] = vcombine_f32(vget_low_f32(a.val[i]), vget_low_f32(b.val[i]));
            row[2 + i] = vcombine_f32(vget_high_f32(a.val[i]), vget_high_f32(b.val[i]));
        }
    }

    static float first_lane(Vector x) { return vgetq_lane_f32(x, 0); }
    static float sum_of_lanes(Vector x) { return vaddvq_f32(x); }
    static float largest_lane(Vector x) { return vmaxvq_f32(x); }

    /// Returns x[i]'s lane sum in lane i. Lanes are added in pairs.
    [[gnu::always_inline]] static inline Vector add_lanes(const Vector (&x)[lanes]) {
        return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3]));
    }
    /// How many V column vectors a group of `rows` rows processes together: at most 16 sums leave half the
    /// registers for operands.
    static constexpr int value_vectors(int rows) { return rows == 4 ? 4 : 8; }
};

}  // namespace
}  // namespace gradtile::attention::cpu
